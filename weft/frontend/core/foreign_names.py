"""Names that people bring along from JAX, NumPy, PyTorch and TensorFlow 2, and what to write here.

Read when a public module or a tensor is asked for a name that it has not (`public_names.py`,
`operators.py`), and when a call has a keyword that a function has not."""

from __future__ import annotations

#: By public module, then by the names of a row: the hint of the error. Where weft has nothing like
#: it, the hint says so, and what to write in its place. TensorFlow 1's names are in `wf.tf1`.
_ROWS: dict[str, dict[str, str]] = {
    "x": {  # attributes of tensors and variables
        "view": "x.reshape(shape)",
        "permute swapaxes": "x.transpose(axes), or wf.permute_dims(x, axes); x.mT exchanges the "
        "last two",
        "t": "x.T",
        "unsqueeze": "wf.expand_dims(x, axis=...)",
        "dim": "x.ndim",
        "numel": "x.size",
        "get_shape": "x.shape",
        "set_shape": "wf.reshape(x, shape); a placeholder and wf.TensorType say what is known",
        "grad": "gradients are results: wf.grad(f)(x), wf.gradients(y, [x]) in a graph, or "
        "optimizer.compute_gradients(loss)",
        "backward": "wf.value_and_grad(f)(x), or optimizer.minimize(loss) in the step",
        "requires_grad requires_grad_": "wf.grad says of which arguments, argnums=",
        "detach": "wf.stop_gradient(x)",
        "cpu": "x.numpy() is an array of the host",
        "cuda to": "wf.to_device(x, 'gpu:0'); wf.astype(x, dtype)",
        "float": "wf.astype(x, wf.float32)",
        "double": "wf.astype(x, wf.float64)",
        "half": "wf.astype(x, wf.float16)",
        "int long": "wf.astype(x, wf.int64)",
        "type": "x.dtype; wf.astype(x, dtype) converts",
        "clone copy": "x never changes, so no copy is needed; wf.asarray(x, copy=True) makes one",
        "contiguous": "every tensor is; nothing is to be done",
        "add_ sub_ mul_ div_ zero_ fill_ copy_ fill": "a tensor never changes: x = x + y; a "
        "wf.Variable does, by assign, assign_add and assign_sub",
        "masked_fill": "wf.where(mask, value, x)",
        "expand expand_as": "wf.broadcast_to(x, shape)",
        "repeat": "wf.repeat(x, n, axis=...); PyTorch's repeat is wf.tile(x, n)",
        "add": "x + y", "sub": "x - y", "mul": "x * y", "div": "x / y", "pow": "x ** y",
        "matmul mm bmm dot": "x @ y, or wf.matmul(x, y)",
        "exp": "wf.exp(x)", "log": "wf.log(x)", "sqrt": "wf.sqrt(x)", "tanh": "wf.tanh(x)",
        "sigmoid": "wf.sigmoid(x)", "relu": "wf.nn.relu(x)", "softmax": "wf.nn.softmax(x)",
        "norm": "wf.linalg.vector_norm(x)",
        "gather": "wf.take_along_axis(x, indices, axis=...)",
        "nonzero": "wf.nonzero(x)", "searchsorted": "wf.searchsorted(x, values)",
        "diagonal": "wf.linalg.diagonal(x)", "trace": "wf.linalg.trace(x)",
        "block_until_ready": "x.numpy() waits for a tensor and gives its array",
        "shard sharding devices": "x.device",
        "read_value": "x.value() of a variable, or x.read()",
    },
    "wf": {
        # transformations
        "jit function jit_compile": "wf.compile compiles a function (jax.jit, tf.function)",
        "vectorized_map": "wf.vmap makes a function of one example one of a batch; wf.map_fn loops",
        "pmap": "wf.shard_map(f, wf.Mesh({'data': n}), in_specs, out_specs); wf.train.SyncReplicas "
        "trains on the tasks of a wf.train.ClusterSpec (docs/guide/replicas.md)",
        "P": "wf.PartitionSpec", "make_mesh": "wf.Mesh({'data': 2, 'model': 4})",
        "jacobian": "wf.jacfwd for more results than inputs, wf.jacrev for fewer",
        "remat": "wf.checkpoint(f): its gradient computes what is inside again",
        "custom_vjp": "wf.custom_gradient gives a function a gradient of its own",
        "GradientTape autograd": "wf.value_and_grad(f)(x) gives a function's value and gradients",
        "no_grad inference_mode enable_grad": "nothing is recorded unless a function is passed to "
        "wf.grad; wf.stop_gradient(x) cuts inside of one",
        "make_jaxpr": "f.ir(*arguments) of a compiled function is its text, f.trace its graph",
        "eval_shape": "f.trace(*arguments) takes wf.TensorType in place of arrays; the graph's "
        "results have types",
        "ShapeDtypeStruct TensorSpec": "wf.TensorType(dtype, shape)",
        "device_put cuda": "wf.to_device(x, 'gpu:0'); a function runs there by "
        "wf.compile(device='gpu:0')",
        "device_get block_until_ready": "x.numpy() waits for a tensor and gives its array",
        "named_scope named_call": "wf.name_scope",
        "local_devices default_backend device_count": "wf.devices() lists the devices",
        "lax": "its loops and branches are wf.cond, wf.switch_case, wf.while_loop, wf.fori_loop "
        "and wf.scan; most others have their names in wf",
        "tree_util tree pytree": "wf.tree_map, wf.tree_leaves, wf.register_pytree",
        "signal": "weft has no such functions",
        "ragged RaggedTensor": "weft has no ragged tensors: padded ones and lengths, or "
        "wf.sparse.SparseTensor",
        "BCOO": "wf.sparse.SparseTensor",
        "BCSR": "wf.sparse.CSRMatrix",
        # creation
        "array tensor as_tensor convert_to_tensor from_numpy": "wf.asarray",
        "ndarray Array": "arrays are wf.Tensor here, made by wf.asarray",
        "range": "wf.arange",
        "logspace geomspace": "wf.pow(10.0, wf.linspace(start, stop, count))",
        "rand randn": "wf.random.uniform(key, shape), wf.random.normal(key, shape), with "
        "key = wf.random.key(0)",
        "randint randperm": "wf.random.randint(key, shape, low, high), "
        "wf.random.permutation(key, n), with key = wf.random.key(0)",
        "manual_seed": "wf.random.key(seed) makes a key, which each function of wf.random takes",
        # shapes and joining
        "concatenate cat": "wf.concat([a, b], axis=0)",
        "vstack hstack dstack column_stack": "wf.concat or wf.stack, which take axis=",
        "append insert": "wf.concat",
        "unsqueeze": "wf.expand_dims(x, axis=...)",
        "permute": "wf.permute_dims, or wf.transpose",
        "view ravel": "wf.reshape; wf.flatten for one axis",
        "chunk array_split": "wf.split",
        "copy clone": "wf.asarray(x, copy=True)",
        "narrow": "x[a:b]",
        "masked_fill": "wf.where(mask, value, x)",
        "masked_select compress": "wf.tf1.boolean_mask, not in compiled functions; wf.where keeps "
        "the shape",
        "index_select": "wf.take(x, indices, axis=...)",
        "put_along_axis scatter": "x.at[indices].set(values), or .add(values)",
        "fliplr flipud": "wf.flip(x, axis=...)",
        "tri": "wf.tril(wf.ones((n, n)))",
        # elementwise
        "absolute": "wf.abs",
        "power": "wf.pow",
        "sub": "wf.subtract",
        "mul": "wf.multiply",
        "div true_divide truediv": "wf.divide",
        "mod floormod": "wf.remainder",
        "fmod": "x - wf.trunc(x / y) * y; wf.remainder has the sign of y",
        "neg": "wf.negative",
        "arcsin": "wf.asin",
        "arccos": "wf.acos",
        "arctan": "wf.atan",
        "arctan2": "wf.atan2",
        "arcsinh": "wf.asinh",
        "arccosh": "wf.acosh",
        "arctanh": "wf.atanh",
        "conjugate": "wf.conj",
        "invert": "wf.bitwise_invert",
        "left_shift": "wf.bitwise_left_shift",
        "right_shift": "wf.bitwise_right_shift",
        "clamp": "wf.clip(x, low, high)",
        "eq": "wf.equal",
        "ne": "wf.not_equal",
        "lt": "wf.less",
        "le": "wf.less_equal",
        "gt": "wf.greater",
        "ge": "wf.greater_equal",
        "radians": "wf.deg2rad",
        "degrees": "wf.rad2deg",
        "allclose": "wf.all(wf.isclose(a, b))",
        "array_equal": "wf.all(wf.equal(a, b))",
        # reductions, products
        "amax": "wf.max",
        "amin": "wf.min",
        "average": "wf.mean",
        "norm": "wf.linalg.vector_norm, or wf.linalg.matrix_norm",
        "topk": "wf.top_k",
        "nanmedian nanquantile nanpercentile nanstd nanvar": "weft has none; wf.tf1.nansum, "
        "nanmean, nanmax and nanmin leave NaN out",
        "histogram2d histogramdd": "wf.tf1.bincount of wf.tf1.ravel_multi_index of wf.tf1.digitize",
        "unsorted_segment_sum": "wf.segment_sum, whose indices may come in any order",
        "mm bmm": "wf.matmul, which takes leading axes",
        "addmm": "wf.matmul(a, b) + c, which becomes one kernel",
        "cov corrcoef convolve interp": "weft has none; wf.nn.conv1d convolves",
        # types
        "float": "wf.float32, or wf.float64",
        "double": "wf.float64",
        "half": "wf.float16",
        "long": "wf.int64",
        "int": "wf.int32, or wf.int64",
        "sequence_mask": "wf.nn.sequence_mask", "reverse_sequence": "wf.nn.reverse_sequence",
        "metric": "wf.metrics",
        # models, input, output
        "Module": "wf.nn.Module",
        "keras layers": "weft has no classes for layers: a model is a function of its "
        "parameters, or of wf.Variable objects; parts are in wf.nn, wf.nn.Module is a base for "
        "one's own",
        "optim optimizers": "optimizers are in wf.train: wf.train.Adam, wf.train.SGD",
        "save savez": "wf.train.Saver saves variables; x.numpy() is an array",
        "utils io": "weft has none; files are read by wf.data",
        "py_func numpy_function pure_callback": "wf.py_function",
        "callback io_callback": "wf.debug_callback; wf.py_function calls one for what it gives",
        "debug debugging checkify": "wf.print, wf.check, wf.assert_finite (and others) and "
        "wf.debug_callback look at values where they are; WEFT_CHECK=nan names the op that made a "
        "NaN; f.ir(x) shows a compiled function",
        "config flags app": "options are arguments of wf.compile and wf.Session, and variables "
        "of the environment (WEFT_TARGET, WEFT_DUMP, ...)",
        "saved_model": "wf.export, wf.load",
        "distribute": "wf.data_parallel(step, wf.Mesh(...)), or wf.train.ClusterSpec, Server and "
        "SyncReplicas",
    },
    "wf.nn": {
        "Linear Dense Conv1d Conv2d Conv2D LayerNorm BatchNorm BatchNorm1d BatchNorm2d "
        "BatchNormalization Embedding Dropout Sequential "
        "Transformer Parameter functional": "weft has no classes for layers: "
        "a model is a function of its parameters, with the functions of wf.nn in it",
        "linear dense": "wf.matmul(x, w) + b",
        "init initializers": "wf.initializers",
        "xavier_uniform_": "wf.initializers.glorot_uniform()(shape)",
        "kaiming_normal_": "wf.initializers.he_normal()(shape)",
        "swish": "wf.nn.silu",
        "attention dot_product_attention": "wf.nn.scaled_dot_product_attention",
        "cross_entropy CrossEntropyLoss softmax_cross_entropy": "wf.nn."
        "sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), a loss a row",
        "binary_cross_entropy_with_logits BCEWithLogitsLoss": "wf.nn."
        "sigmoid_cross_entropy_with_logits",
        "mse_loss MSELoss": "wf.nn.mean_squared_error",
        "embed": "wf.nn.embedding_lookup",
        "one_hot": "wf.one_hot",
        "in_top_k": "wf.metrics.in_top_k",
        "logsigmoid": "wf.nn.log_sigmoid",
        "hardsigmoid": "wf.nn.hard_sigmoid",
        "normalize": "wf.nn.l2_normalize",
        "bias_add": "x + b, which becomes one kernel with its neighbours",
        "LSTM lstm lstm_cell BasicLSTMCell": "wf.nn.LSTMCell, with wf.nn.dynamic_rnn",
        "GRU gru": "wf.nn.GRUCell, with wf.nn.dynamic_rnn",
        "RNN rnn static_rnn rnn_cell SimpleRNN": "wf.nn.dynamic_rnn, with wf.nn.LSTMCell, "
        "wf.nn.GRUCell or wf.nn.BasicRNNCell",
        "LSTMStateTuple": "wf.nn.LSTMState",
        "StackedRNNCells": "wf.nn.MultiRNNCell",
        "LayerNormBasicLSTMCell": "wf.nn.LayerNormLSTMCell",
        "ConvLSTM2D Conv2DLSTMCell": "wf.nn.ConvLSTMCell",
        "CTCLoss": "wf.nn.ctc_loss",
        "MultiheadAttention MultiHeadDotProductAttention": "wf.nn.MultiHeadAttention",
        "zero_fraction": "wf.mean(wf.astype(x == 0, wf.float32))",
        "batchnorm batch_norm2d": "wf.nn.batch_norm",
        "log_poisson_loss": "wf.losses.log_poisson",
        "cosine_similarity": "1 - wf.losses.cosine_distance(a, b, reduction='none')",
        "huber_loss smooth_l1_loss": "wf.losses.huber_loss",
        "l1_loss": "wf.losses.absolute_difference",
        "kl_div": "wf.losses.kl_divergence",
        "pixel_unshuffle": "wf.nn.space_to_depth, whose channels come in TensorFlow's order",
        "pixel_shuffle": "wf.nn.depth_to_space, whose channels come in TensorFlow's order",
        "conv_transpose1d conv_transpose2d conv_transpose3d": "wf.nn.conv1d_transpose, "
        "wf.nn.conv2d_transpose, wf.nn.conv3d_transpose",
        "local_response_norm": "wf.nn.local_response_normalization, whose alpha is for the sum",
        "adaptive_avg_pool2d AdaptiveAvgPool2d": "wf.mean(x, axis=(1, 2)) for one pixel, or "
        "wf.nn.avg_pool2d",
        "depthwise_conv3d": "wf.nn.conv3d with groups= the number of channels",
    },
    "wf.image": {
        "resize_images resize_bilinear resize_bicubic resize_nearest_neighbor resize_area "
        "interpolate scale_and_translate": "wf.image.resize(image, size, method)",
        "resize_image_with_crop_or_pad": "wf.image.resize_with_crop_or_pad",
        "transpose_image": "wf.image.transpose",
        "extract_image_patches": "wf.image.extract_patches",
        "non_max_suppression_padded nms": "wf.image.non_max_suppression, whose result has one size",
        "sobel_edges image_gradients yuv_to_rgb rgb_to_yuv rgb_to_yiq": "weft has "
        "none: wf.nn.depthwise_conv2d filters, wf.matmul mixes channels",
        "decode_jpeg decode_png decode_image": "wf.tf1.decode_image, or wf.data.decode_image",
        "random_jpeg_quality adjust_jpeg_quality encode_jpeg encode_png": "weft has none: Pillow "
        "in wf.py_function",
        "stateless_random_crop": "wf.image.random_crop, which always takes a key",
        "hflip horizontal_flip": "wf.image.flip_left_right",
        "vflip vertical_flip": "wf.image.flip_up_down",
        "random_jitter ColorJitter": "wf.image.random_brightness, random_contrast, "
        "random_saturation and random_hue one after the other",
        "draw_bounding_boxes sample_distorted_bounding_box": "weft has none",
    },
    "wf.metrics": {
        "BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy accuracy_score": "wf.metrics."
        "Accuracy, of classes: wf.argmax(scores, axis=-1), or scores > 0.5",
        "SparseTopKCategoricalAccuracy TopKCategoricalAccuracy top_k_accuracy_score": "wf.metrics."
        "TopKAccuracy",
        "precision_score": "wf.metrics.Precision().compute(labels, predictions)",
        "recall_score": "wf.metrics.Recall().compute(labels, predictions)",
        "AUROC roc_auc_score roc_curve": "wf.metrics.AUC()",
        "average_precision_score streaming_auc": "wf.metrics.AUC(curve='PR')",
        "MeanIOU jaccard_score JaccardIndex": "wf.metrics.MeanIoU",
        "RMSE": "wf.metrics.RootMeanSquaredError",
        "Sum": "wf.metrics.Mean: its variables() are the sum and the count",
        "F1Score f1_score FBetaScore": "weft has none: 2 * p * r / (p + r) of wf.metrics.Precision "
        "and wf.metrics.Recall",
        "mean_per_class_accuracy recall_at_k sparse_average_precision_at_k": "weft has none; "
        "wf.metrics.TopKAccuracy and wf.metrics.ConfusionMatrix are near",
    },
    "wf.initializers": {
        "xavier_uniform xavier_uniform_ GlorotUniform glorot_uniform_initializer "
        "xavier_initializer": "wf.initializers.glorot_uniform()",
        "xavier_normal xavier_normal_ GlorotNormal glorot_normal_initializer": "wf.initializers."
        "glorot_normal()",
        "kaiming_uniform kaiming_uniform_ HeUniform": "wf.initializers.he_uniform()",
        "kaiming_normal kaiming_normal_ HeNormal": "wf.initializers.he_normal()",
        "LecunUniform": "wf.initializers.lecun_uniform()",
        "LecunNormal": "wf.initializers.lecun_normal()",
        "VarianceScaling variance_scaling_initializer": "wf.initializers.variance_scaling()",
        "RandomUniform random_uniform random_uniform_initializer uniform_": "wf.initializers."
        "uniform(minval, maxval)",
        "RandomNormal random_normal random_normal_initializer normal_": "wf.initializers.normal("
        "stddev=...)",
        "TruncatedNormal truncated_normal_initializer trunc_normal_": "wf.initializers."
        "truncated_normal(stddev=...)",
        "Orthogonal orthogonal_ orthogonal_initializer": "wf.initializers.orthogonal()",
        "Identity eye eye_": "wf.initializers.identity()",
        "Zeros zeros_ zeros_initializer": "wf.initializers.zeros()",
        "Ones ones_ ones_initializer": "wf.initializers.ones()",
        "Constant constant_ constant_initializer": "wf.initializers.constant(value)",
    },
    "wf.losses": {
        "mse mse_loss MSELoss MeanSquaredError squared_error l2_loss": "wf.losses."
        "mean_squared_error; half the sum of squares is wf.nn.l2_loss",
        "mae l1_loss L1Loss MeanAbsoluteError mean_absolute_error absolute_error": "wf.losses."
        "absolute_difference",
        "huber Huber HuberLoss smooth_l1_loss SmoothL1Loss": "wf.losses.huber_loss",
        "hinge Hinge": "wf.losses.hinge_loss, with labels 0 and 1",
        "SquaredHinge": "wf.losses.squared_hinge, with labels 0 and 1",
        "CategoricalHinge": "wf.losses.categorical_hinge",
        "LogCosh logcosh": "wf.losses.log_cosh",
        "Poisson": "wf.losses.poisson",
        "PoissonNLLLoss poisson_nll_loss log_poisson_loss": "wf.losses.log_poisson",
        "KLDivergence KLDivLoss kl_div kld convex_kl_divergence": "wf.losses.kl_divergence",
        "CosineSimilarity cosine_similarity CosineEmbeddingLoss": "wf.losses.cosine_distance, "
        "which is 1 minus the similarity",
        "binary_cross_entropy BCELoss": "wf.losses.log_loss, of probabilities",
        "binary_crossentropy BinaryCrossentropy BCEWithLogitsLoss "
        "binary_cross_entropy_with_logits sigmoid_binary_cross_entropy": "wf.losses."
        "sigmoid_cross_entropy, of logits; of probabilities wf.losses.log_loss",
        "categorical_crossentropy CategoricalCrossentropy": "wf.losses.softmax_cross_entropy, of "
        "logits",
        "cross_entropy CrossEntropyLoss sparse_categorical_crossentropy "
        "SparseCategoricalCrossentropy softmax_cross_entropy_with_integer_labels": "wf.losses."
        "sparse_softmax_cross_entropy, of logits",
        "binary_focal_crossentropy BinaryFocalCrossentropy sigmoid_focal_loss sigmoid_focal_"
        "crossentropy": "wf.losses.sigmoid_focal_cross_entropy",
        "categorical_focal_crossentropy CategoricalFocalCrossentropy": "wf.losses."
        "softmax_focal_cross_entropy",
        "TripletMarginLoss triplet_loss triplet_semihard_loss": "wf.losses.triplet_margin_loss",
        "MarginRankingLoss": "wf.losses.margin_ranking_loss",
        "L1 l1": "wf.losses.l1_regularizer",
        "L2 l2": "wf.losses.l2_regularizer",
        "L1L2 l1_l2": "wf.losses.l1_l2_regularizer",
        "get_losses get_total_loss add_loss": "weft keeps no list of losses: add the numbers, and "
        "wf.losses.get_regularization_loss() of the variables",
        "ctc_loss CTCLoss": "wf.nn.ctc_loss",
    },
    "wf.random": {
        "PRNGKey seed manual_seed default_rng": "wf.random.key(seed)",
        "randn standard_normal": "wf.random.normal(key, shape)",
        "rand random random_sample": "wf.random.uniform(key, shape)",
        "integers": "wf.random.randint",
        "randperm": "wf.random.permutation",
        "multinomial": "wf.random.categorical",
        "stateless_normal": "wf.random.normal, which always takes a key",
        "stateless_uniform": "wf.random.uniform, which always takes a key",
    },
    "wf.linalg": {
        "matrix_exp": "wf.linalg.expm(x)",
        "inverse": "wf.linalg.inv(x)",
        "logdet": "wf.linalg.slogdet(x).logabsdet",
        "triangular_solve": "wf.linalg.solve_triangular(x1, x2)",
        "lu_factor lu_solve cho_factor cho_solve": "wf.linalg.solve(x1, x2), which factors a "
        "matrix once for its gradient, too; wf.linalg.lu and wf.linalg.cholesky with "
        "wf.linalg.solve_triangular",
        "sqrtm logm polar schur": "weft has none: scipy.linalg on x.numpy(), or wf.py_function",
        "norm": "wf.linalg.vector_norm, or wf.linalg.matrix_norm",
        "multi_dot": "wf.einsum",
        "dot": "wf.dot",
        "einsum": "wf.einsum",
        "kron": "wf.reshape(wf.tensordot(a, b, axes=0), ...) after a permutation",
    },
    "wf.fft": {
        "dct idct dst idst": "weft has no cosine and sine transforms: scipy.fft on x.numpy(), or "
        "wf.py_function",
        "rfft3d fft3d": "wf.fft.rfftn, wf.fft.fftn, with axes=(-3, -2, -1)",
        "fft2d ifft2d rfft2d irfft2d": "wf.fft.fft2 and the like",
    },
    "wf.train": {
        "adam": "wf.train.Adam",
        "LazyAdam LazyAdamOptimizer": "wf.train.Adam(lazy=True)",
        "sgd": "wf.train.SGD",
        "Adamax Nadam AMSGrad": "weft has none: wf.train.Optimizer is the base of one's own",
        "FTRL": "wf.train.Ftrl", "LAMB": "wf.train.Lamb", "lion": "wf.train.Lion",
        "EMA ema ModelAverage AveragedModel SWA": "wf.train.ExponentialMovingAverage",
        "MultiSteps": "wf.train.GradientAccumulation",
        "LossScaleOptimizer GradScaler DynamicLossScale": "wf.train.LossScaling",
        "AdaGrad": "wf.train.Adagrad",
        "RMSprop": "wf.train.RMSProp",
        "apply_updates": "optimizer.apply_gradients(zip(gradients, variables))",
        "clip_grad_norm_ clip_grad_norm": "wf.train.clip_by_global_norm",
        "Checkpoint CheckpointManager save restore": "wf.train.Saver",
        "lr_scheduler CosineDecay warmup_cosine_decay_schedule": "wf.train.cosine_decay, "
        "wf.train.linear_warmup",
        "Supervisor": "wf.train.MonitoredTrainingSession",
    },
    "wf.data": {
        "DataLoader TensorDataset": "wf.data.Dataset, with .shuffle, .batch and .prefetch",
        "TFRecordDataset": "wf.data.read_tfrecords",
        "TextLineDataset": "wf.data.read_lines",
        "FixedLengthRecordDataset": "wf.data.read_fixed_records",
        "AUTOTUNE": "give a number",
        "Iterator": "iter(dataset), a wf.data.DatasetIterator",
    },
}  # fmt: skip

#: Keywords of functions of other libraries, by what they are called here.
KEYWORDS = {
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "reduction_indices": "axis",
    "keepdim": "keepdims",
    "keep_dims": "keepdims",
    "stride": "strides",
    "lr": "learning_rate",
    "causal": "is_causal",
    "kernel_size": "ksize",
    "static_argnums": "static_argnames, by name or position",
    "donate_argnums": "donate, by name or position",
    "weight": "scale",
    "bias": "offset",
    "requires_grad": "nothing: wf.grad says of which arguments",
    "out": "nothing: results are new tensors",
    "unbiased": "correction",
    "ddof": "correction",
    "name": "nothing: wf.name_tensor(x, name) names a tensor of a graph, wf.name_scope ops",
}


def hint_for(module: str, name: str) -> str | None:
    """What to write in place of a name that a public module (`wf`, `wf.nn`) has not, or a tensor
    ("x"); None if it is not in the table."""
    for names, hint in _ROWS.get(module, {}).items():
        if name in names.split():
            return hint
    return None


def all_rows() -> list[tuple[str, str, str]]:
    """(module, name, hint) of the whole table."""
    return [
        (module, name, hint)
        for module, rows in _ROWS.items()
        for names, hint in rows.items()
        for name in names.split()
    ]
