"""Data files: TFRecord, tf.train.Example, CSV, .npy/.npz, images, text; permission to open them.

Enters: paths. Leaves: elements one by one; what is damaged is a DataLossError, what does not fit
what was asked for an InvalidArgumentError, both with the file and the place in it. Imports: `ir`.
No user API: that is `weft/frontend/data`."""
