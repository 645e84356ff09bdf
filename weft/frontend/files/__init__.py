"""Files in graphs, with TensorFlow 1's names: readers, what their records hold, input producers and
batches."""
