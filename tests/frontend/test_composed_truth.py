"""Every public function that computes is checked against a truth that is not weft's: a row of
composed_truth.py or composed_nn_truth.py, or a line here that says why it has none."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import composed_nn_truth
import composed_truth
import hypothesis.strategies as st
import numpy as np
import pytest
from composed_draws import check, run
from elementwise_names import NAMES
from example_counts import examples
from hypothesis import HealthCheck, Phase, given
from paths import TESTS

import weft as wf

TABLE = {**composed_truth.TABLE, **composed_nn_truth.TABLE}
#: Numbers that come from a key cannot be made simpler, and each compiles kernels of its own.
RANDOM = sorted(n for n in TABLE if n.startswith("random") or n == "truncated_normal")
SPACES = {"": wf, "tf1.": wf.tf1, "nn.": wf.nn, "random.": wf.random, "train.": wf.train,
          "linalg.": wf.linalg, "data.": wf.data, "lookup.": wf.lookup, "strings.": wf.strings,
          "losses.": wf.losses, "image.": wf.image, "initializers.": wf.initializers,
          "metrics.": wf.metrics, "sparse.": wf.sparse}  # fmt: skip

#: One op of the IR, whose meaning test_ops_reference.py checks on every dtype; `test_one_op` says
#: that this is so.
ONE_OP = """abs acos acosh add asin asinh atan atan2 atanh bitcast bitwise_and bitwise_invert
    bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor cbrt ceil copysign cos cosh
    digamma divide equal erf erfc erfinv exp exp2 expm1 floor floor_divide fma greater greater_equal
    hypot isfinite isinf isnan less less_equal lgamma log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor maximum minimum multiply negative nextafter not_equal
    reciprocal remainder round rsqrt sigmoid sign signbit sin sinh sqrt square subtract tan tanh
    trunc"""

LOSSES = """absolute_difference categorical_hinge contrastive_loss cosine_distance hinge_loss
    huber_loss kl_divergence log_cosh log_loss log_poisson margin_ranking_loss
    mean_pairwise_squared_error mean_squared_error poisson sigmoid_cross_entropy
    sigmoid_focal_cross_entropy softmax_cross_entropy softmax_focal_cross_entropy squared_hinge
    triplet_margin_loss"""

INITIALIZERS = """uniform normal truncated_normal variance_scaling glorot_normal glorot_uniform
    he_normal he_uniform lecun_normal lecun_uniform"""

METRICS = """AUC Accuracy ConfusionMatrix MeanAbsoluteError MeanIoU MeanSquaredError Precision
    Recall RootMeanSquaredError SensitivityAtSpecificity SpecificityAtSensitivity TopKAccuracy"""
PAIRS = """accuracy auc mean_absolute_error mean_iou mean_squared_error precision recall
    root_mean_squared_error sensitivity_at_specificity specificity_at_sensitivity
    streaming_confusion_matrix top_k_accuracy"""

#: Property tests that stand elsewhere: the truth, and the test.
ELSEWHERE = {
    "einsum": ("np.einsum of all operands at once", "test_einsum.py", "test_as_numpy"),
    "nn.scaled_dot_product_attention": (
        "the formula in float64",
        "test_attention.py",
        "test_the_function_against_the_formula",
    ),
    "iota": ("np.indices", "test_ops_structural.py", "test_iota"),
    "decode_raw": ("np.frombuffer", "test_strings.py", "test_decode_raw_reads_what_numpy_wrote"),
    "train.RMSProp": ("TF1's formula in float64", "test_train.py", "test_formula_eager"),
    "train.LBFGS": ("Nocedal and Wright 7.4 in float64", "test_train.py", "test_formula_eager"),
    "random.Generator": ("the keys one after the other", "test_random.py", "test_generator_state"),
    "losses.compute_weighted_loss": (
        "NumPy in float64",
        "test_losses.py",
        "test_weights_and_reductions",
    ),
    "losses.sparse_softmax_cross_entropy": (
        "NumPy in float64, scikit-learn",
        "test_losses.py",
        "test_sparse_softmax_cross_entropy",
    ),
    **{
        f"losses.{name}": ("NumPy in float64", "test_losses.py", "test_regularizers")
        for name in ("l1_regularizer", "l2_regularizer", "l1_l2_regularizer")
    },
    **{
        f"train.{name}": ("the formula in float64", "test_more_optimizers.py", test)
        for names, test in (
            ("Adafactor Ftrl Lamb Lion", "test_formula"),
            ("GradientAccumulation", "test_accumulation"),
            ("LossScaling", "test_scales"),
            ("ExponentialMovingAverage", "test_moving_average"),
        )
        for name in names.split()
    },
    **{
        f"nn.{name}": ("NumPy, example by example", "test_recurrent.py", test)
        for names, test in (
            ("BasicRNNCell GRUCell LSTMCell dynamic_rnn", "test_sequences"),
            ("bidirectional_dynamic_rnn", "test_both_directions"),
            ("sequence_mask", "test_sequence_mask"),
            ("reverse_sequence", "test_reverse_sequence"),
        )
        for name in names.split()
    },
    **{
        name: ("NumPy", "test_statistics.py", test)
        for names, test in (
            ("median quantile percentile", "test_quantiles"),
            ("nansum nanmean nanmax nanmin", "test_nan_left_out"),
            ("bincount", "test_bincount"),
            ("histogram", "test_histogram"),
            ("histogram_fixed_width", "test_histogram_fixed_width"),
            ("digitize", "test_digitize"),
            ("unravel_index ravel_multi_index", "test_flat_indices"),
            ("invert_permutation", "test_invert_permutation"),
            ("batch_gather", "test_batch_gather"),
            ("add_n", "test_add_n"),
            ("cummax cummin logcumsumexp", "test_running_reductions"),
        )
        for name in names.split()
    },
    **{
        f"nn.{name}": ("loops over elements", "test_blocks.py", test)
        for names, test in (
            ("space_to_depth depth_to_space", "test_depth"),
            ("space_to_batch_nd batch_to_space_nd", "test_batch"),
            ("local_response_normalization", "test_response_normalization"),
            ("max_pool_with_argmax", "test_places_of_maxima"),
        )
        for name in names.split()
    },
    **{
        f"image.{name}": (truth, "test_image.py", test)
        for names, truth, test in (
            ("resize", "TF's formulas as loops, Pillow", "test_resize"),
            ("resize_with_pad", "its parts", "test_aspect_ratios"),
            ("crop_and_resize", "TF's formulas as loops", "test_crop_and_resize"),
            ("flip_left_right flip_up_down rot90 transpose", "NumPy", "test_flips_and_turns"),
            (
                "crop_to_bounding_box pad_to_bounding_box central_crop resize_with_crop_or_pad",
                "NumPy",
                "test_crops_and_paddings",
            ),
            ("extract_patches", "loops over pixels", "test_extract_patches"),
            ("random_flip_left_right random_flip_up_down", "NumPy", "test_random_flips"),
            ("random_crop", "NumPy", "test_random_crops"),
            (
                "random_brightness random_contrast random_hue random_saturation",
                "the adjustment by the key's number",
                "test_random_colours",
            ),
            ("convert_image_dtype", "NumPy in float64", "test_convert_image_dtype"),
            (
                "adjust_brightness adjust_contrast adjust_gamma rgb_to_grayscale grayscale_to_rgb "
                "per_image_standardization",
                "NumPy in float64",
                "test_adjustments",
            ),
            (
                "rgb_to_hsv hsv_to_rgb adjust_hue adjust_saturation",
                "colorsys",
                "test_hue_saturation_value",
            ),
            ("total_variation psnr", "NumPy in float64", "test_total_variation_and_psnr"),
            ("ssim", "the formula, window by window", "test_ssim"),
            ("ssim_multiscale", "the formula, window by window", "test_ssim_multiscale"),
            ("non_max_suppression", "the algorithm in Python", "test_non_max_suppression"),
        )
        for name in names.split()
    },
    **{
        f"nn.{name}": ("every path of the frames, loops in Python", "test_ctc.py", test)
        for name, test in (
            ("ctc_loss", "test_every_path"),
            ("ctc_greedy_decoder", "test_greedy"),
            ("ctc_beam_search_decoder", "test_beam_search_as_in_python"),
            ("edit_distance", "test_edit_distance"),
        )
    },
    **{
        f"nn.{name}": ("NumPy, head by head and row by row", "test_attention_layers.py", test)
        for name, test in (
            ("multi_head_attention", "test_multi_head_attention"),
            ("MultiHeadAttention", "test_layer"),
            ("KVCache", "test_a_cache_gives_what_the_whole_sequence_gives"),
            ("causal_mask", "test_masks"),
            ("padding_mask", "test_masks"),
            ("rotary_embedding", "test_rotary_embedding"),
            ("sinusoidal_positions", "test_sinusoidal_positions"),
        )
    },
    **{
        f"nn.{name}": ("NumPy, row by row and place by place", "test_rnn_attention.py", test)
        for names, test in (
            ("BahdanauAttention LuongAttention", "test_mechanisms"),
            ("monotonic_attention", "test_monotonic_attention"),
            (
                "BahdanauMonotonicAttention LuongMonotonicAttention",
                "test_monotonic_mechanisms",
            ),
            ("AttentionWrapper", "test_wrapper"),
        )
        for name in names.split()
    },
    "nn.hierarchical_softmax_loss": (
        "NumPy, decision by decision",
        "test_hierarchical.py",
        "test_hierarchical_softmax",
    ),
    **{
        f"nn.{name}": ("every sequence there is, loops in Python", "test_decoding.py", test)
        for name, test in (
            ("beam_search", "test_a_wide_beam_finds_the_best_of_all"),
            ("greedy_decode", "test_greedy"),
            ("sample_decode", "test_sampling"),
            ("filter_logits", "test_filter_logits"),
        )
    },
    **{
        f"nn.{name}": ("NumPy, or its parts one after the other", "test_cells.py", test)
        for name, test in (
            ("MultiRNNCell", "test_layers"),
            ("DropoutWrapper", "test_dropout"),
            ("ResidualWrapper", "test_residual"),
            ("LayerNormLSTMCell", "test_layer_norm_lstm"),
            ("ConvLSTMCell", "test_conv_lstm"),
            ("stack_bidirectional_dynamic_rnn", "test_layers_in_both_directions"),
        )
    },
    "initializers.orthogonal": (
        "np.linalg.qr of the same matrix",
        "test_initializers.py",
        "test_orthogonal",
    ),
    **{
        f"initializers.{name}": ("NumPy", "test_initializers.py", "test_constants")
        for name in ("zeros", "ones", "constant", "identity")
    },
    **{
        f"initializers.{name}": ("SciPy's distributions", "test_initializers.py", "test_draws")
        for name in INITIALIZERS.split()
    },
    **{
        f"metrics.{name}": ("scikit-learn, NumPy", "test_metrics.py", test)
        for names, test in (
            (METRICS, "test_of_many_batches"),
            (PAIRS, "test_pairs_in_a_session"),
            ("Mean mean", "test_mean"),
            ("confusion_matrix", "test_confusion_matrix"),
            ("in_top_k", "test_in_top_k"),
        )
        for name in names.split()
    },
    **{  # test_every_loss_has_a_case says that these are all
        f"losses.{name}": ("NumPy in float64, SciPy", "test_losses.py", "test_values")
        for name in LOSSES.split()
    },
}

#: Functions of matrices: their truth is NumPy's and SciPy's, on all dtypes, shapes and ways to run.
MATRICES = {
    "test_of_square_matrices": "det inv slogdet cond",
    "test_of_definite_ones": "cholesky eigh eigvalsh",
    "test_of_any_matrices": "svd svdvals qr matrix_rank pinv",
    "test_lu_and_eig": "lu eig eigvals",
    "test_solving": "solve solve_triangular",
    "test_least_squares": "lstsq",
    "test_exponentials": "expm",
}
ELSEWHERE |= {
    f"linalg.{name}": ("numpy.linalg, scipy.linalg", "test_linalg_decompositions.py", test)
    for test, names in MATRICES.items()
    for name in names.split()
}

#: Functions of sparse tensors: their truth is NumPy's on the dense ones, entry by entry.
ENTRIES = {
    "test_to_and_from_dense": "SparseTensor from_dense to_dense",
    "test_order_and_places": "reorder coalesce transpose expand_dims reshape slice",
    "test_sums_of_two": "add concat",
    "test_elementwise_with_dense": "multiply divide",
    "test_reductions": "reduce_sum reduce_max reduce_min",
    "test_softmax": "softmax",
    "test_rows_kept_and_filled": "retain fill_empty_rows FilledRows reset_shape",
    "test_products": "matmul",
    "test_csr_against_scipy": "CSRMatrix to_csr",
}
NAMES_OF_TENSORFLOW = """add concat fill_empty_rows maximum minimum reduce_max reduce_sum reorder
    reset_shape reshape retain slice softmax tensor_dense_matmul tensor_to_dense to_dense
    transpose"""
ELSEWHERE |= {
    f"sparse.{name}": ("NumPy on the dense tensor", "test_sparse_tensor.py", test)
    for test, names in ENTRIES.items()
    for name in names.split()
}
ELSEWHERE |= {
    f"sparse.{name}": ("SciPy, NumPy on the dense tensors", "test_sparse_arithmetic.py", test)
    for name, test in {
        "maximum": "test_two_sparse_operands",
        "minimum": "test_two_sparse_operands",
        "subtract": "test_two_sparse_operands",
        "pow": "test_powers",
    }.items()
}
ELSEWHERE |= {
    "nn.embedding_lookup_sparse": (
        "TensorFlow's definition in a loop",
        "test_sparse_tensor.py",
        "test_embedding_lookup_sparse",
    ),
    "sparse_placeholder": (
        "what was fed",
        "test_sparse_tensor.py",
        "test_feeds_and_fetches",
    ),
    **{
        f"sparse_{name}": (
            "TensorFlow's documentation", "test_sparse_tensor.py", "test_names_of_tensorflow"
        )
        for name in NAMES_OF_TENSORFLOW.split()
    },
}  # fmt: skip

#: Why public functions and classes have no row. A name stands once.
EXEMPT = {
    "derivatives of what it is given; of every op: test_gradients.py, test_ways.py":
        "grad gradients vjp value_and_grad custom_gradient",
    "transformations: test_transforms.py":
        "vmap jvp linearize hvp jacfwd jacrev hessian custom_jvp checkpoint associative_scan "
        "shard_map data_parallel",
    "control flow: it computes what its functions do (test_control_flow.py, semantic_programs.py)":
        "case cond switch_case while_loop fori_loop scan map_fn foldl foldr switch merge enter "
        "exit loop_cond next_iteration",
    "graphs, sessions, scopes: no numbers":
        "Graph Session InteractiveSession RunMetadata RunOptions Effect compile CompiledFunction "
        "placeholder name_tensor name_scope control_dependencies group no_op import_graph_def "
        "export load "
        "get_default_graph get_default_session reset_default_graph container VariableScope "
        "variable_scope get_variable get_variable_scope GraphGrowthWarning RecompileWarning "
        "Float64Warning PerformanceWarning CancelToken AUTO_REUSE chrome_trace",
    "names of numbers": "AggregationMethod",
    "names of shards: test_shard_map.py": "Mesh PartitionSpec",
    "collections of a graph: test_operations.py":
        "GraphKeys add_to_collection add_to_collections get_collection get_collection_ref",
    "variables and what is kept in them: test_state_ops.py, test_variable.py":
        "Variable assign assign_add assign_sub scatter_add scatter_sub scatter_update count_up_to "
        "global_variables global_variables_initializer initialize_all_variables "
        "trainable_variables variables_initializer local_variables_initializer "
        "is_variable_initialized "
        "assert_variables_initialized report_uninitialized_variables create_partitioned_variables",
    "queues, tables and other resources: test_queue_model.py, test_resources.py":
        "Barrier ConditionalAccumulator SparseConditionalAccumulator SparseGradient FIFOQueue "
        "PaddingFIFOQueue PriorityQueue RandomShuffleQueue QueueBase Stack TensorArray "
        "MutableHashTable lookup.KeyValueTensorInitializer lookup.StaticHashTable "
        "lookup.StaticVocabularyTable lookup.TextFileIndex lookup.TextFileInitializer "
        "lookup.index_table_from_file lookup.index_table_from_tensor "
        "lookup.index_to_string_table_from_tensor",
    "types, and what is known of them":
        "DType Tensor TensorType IndexedSlices DeviceArray finfo iinfo isdtype can_cast "
        "result_type SparseTensorValue register_pytree tree_leaves tree_map nn.Candidates "
        "nn.MaxPool image.Suppressed "
        "nn.Moments __array_namespace_info__ losses.Reduction initializers.Initializer "
        "metrics.Streaming nn.CTCLabels nn.Decoded",
    "they hold variables: test_module.py, test_recurrent.py":
        "nn.Module nn.RNNCell nn.LSTMState nn.AttentionMechanism nn.AttentionState",
    "penalties of variables: test_losses.py":
        "losses.get_regularization_loss losses.get_regularization_losses",
    "it says what a size is, and changes nothing: test_dynamic_ops.py": "ensure_shape",
    "devices and threads: where, not what":
        "DeviceInfo DeviceSpec DeviceWarning device devices colocate_with to_device "
        "set_transfer_guard transfer_guard bfloat16_transfer get_num_threads set_num_threads bench "
        "from_dlpack",
    "a shape of shapes: test_array_api_names.py": "broadcast_shapes",
    "what a program adds to weft: test_extend.py":
        "register_op register_kernel register_gradient register_function py_function elementwise "
        "reducer",
    "they keep steps, and run them again: test_record.py": "record replay",
    "they look at values, and compute none: test_debug.py":
        "assert_all_close assert_equal assert_finite assert_greater assert_greater_equal "
        "assert_less assert_less_equal assert_non_negative assert_not_equal assert_positive "
        "assert_shape check debug_callback print tap",
    "the seed of a process-wide stream: test_random.py":
        "set_random_seed random.set_random_seed random.default_generator",
    "strings, against TensorFlow's documentation: test_strings.py":
        "as_string string_join string_length string_split string_to_hash_bucket "
        "string_to_hash_bucket_fast string_to_number substr",
    "strings, beside Python's functions: test_text_functions.py":
        "strings.Rows strings.as_string strings.decode_base64 strings.decode_csv "
        "strings.decode_json strings.encode_base64 strings.format strings.join strings.length "
        "strings.lower strings.reduce_join strings.regex_full_match strings.regex_replace "
        "strings.regex_split strings.split strings.strip strings.substr strings.to_hash_bucket "
        "strings.to_hash_bucket_fast strings.to_hash_bucket_strong strings.to_number "
        "strings.unicode_decode strings.unicode_encode strings.unicode_split "
        "strings.unicode_transcode strings.upper",
    "files and their bytes, read back, or TensorFlow's own: test_file_ops.py, test_data_files.py":
        "Assert Print decode_csv decode_image decode_jpeg decode_png matching_files parse_example "
        "parse_single_example read_file write_file FixedLenFeature VarLenFeature ReaderBase "
        "FixedLengthRecordReader IdentityReader TFRecordReader TextLineReader WholeFileReader "
        "data.TFRecordWriter data.decode_example data.decode_image data.encode_example "
        "data.parse_single_example data.read_csv data.read_image data.read_lines data.read_npy "
        "data.read_npz data.read_tfrecords data.resize_image data.read_fixed_records",
    "pipelines of elements: test_data_pipeline.py":
        "data.Dataset data.DatasetIterator data.progress",
    "the common part of optimizers and metrics":
        "train.Optimizer metrics.Metric metrics.Comparison",
    "means of several replicas: test_replicas_sync.py":
        "train.mean_gradients train.microbatch_gradients train.SyncReplicas",
    "training's surroundings: sessions, hooks, queues, clusters, checkpoints":
        "train.CheckpointSaverHook train.CheckpointState train.Cluster train.ClusterSpec "
        "train.ClusterTask train.Coordinator train.GreedyLoadBalancingStrategy train.JsonResolver "
        "train.KubernetesResolver train.LoggingTensorHook train.LooperThread "
        "train.MonitoredSession train.MonitoredTrainingSession train.NanLossDuringTrainingError "
        "train.NanTensorHook train.ProfilerHook train.QueueRunner train.RankResolver "
        "train.RayCluster train.RestoreReport train.RoundRobinStrategy train.SaveOps train.Saver "
        "train.Elastic train.Scaffold train.SecondOrStepTimer train.Server train.SessionRunArgs "
        "train.SessionRunContext train.SessionRunHook train.SessionRunValues train.ShardedSaver "
        "train.SlurmResolver train.Stateful train.StepCounterHook train.StopAtStepHook "
        "train.SummarySaverHook "
        "train.add_queue_runner train.batch train.batch_join train.best_checkpoint "
        "train.byte_size_load_fn train.checkpoint_exists train.cluster_from_environment "
        "train.create_global_step train.get_checkpoint_state train.get_global_step "
        "train.get_or_create_global_step train.global_step train.input_producer "
        "train.latest_checkpoint train.limit_epochs train.list_variables train.load_variable "
        "train.maybe_batch train.range_input_producer train.register_state "
        "train.replica_device_setter train.restore_v2 train.save_v2 train.shuffle_batch "
        "train.shuffle_batch_join train.slice_input_producer train.start_queue_runners "
        "train.string_input_producer",
}  # fmt: skip

#: Rows without inputs, and functions that need a size to build their graph (how many results, which
#: window, how deep an index, which of two axes has size 1, whether there is a largest element).
CLOSED = """arange constant cross diag diagonal empty eye gather_nd linspace logsumexp nn.avg_pool
    nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.conv nn.conv1d nn.conv1d_transpose nn.conv2d
    nn.conv2d_transpose nn.conv3d nn.conv3d_transpose
    nn.depthwise_conv1d nn.depthwise_conv2d nn.separable_conv1d nn.log_softmax
    nn.logsumexp nn.max_pool nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.pool
    nn.separable_conv2d nn.softmax
    nn.softmax_cross_entropy_with_logits ones reduce_logsumexp reshape scatter_nd
    scatter_nd_add scatter_nd_max scatter_nd_min scatter_nd_update split squeeze trace
    train.Adadelta train.Adagrad train.Adam train.AdamW train.Momentum train.SGD unstack zeros"""


@pytest.mark.share(6)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(TABLE.keys() - set(RANDOM)))
@examples(60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_as_the_truth(name: str, data: st.DataObject) -> None:
    run(TABLE[name](data.draw), data.draw(st.integers(0, 2), "compiled if 2") == 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", RANDOM)
@examples(30, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.data())
def test_random_numbers(name: str, data: st.DataObject) -> None:
    run(TABLE[name](data.draw), data.draw(st.integers(0, 9), "compiled if 9") == 9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(TABLE.keys() - set(RANDOM) - set(CLOSED.split())))
@examples(20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_sizes_that_a_feed_decides(name: str, data: st.DataObject) -> None:
    """In a session whose placeholders say no size. Where NumPy broadcasts a size of 1 that only a
    feed has, that is the error that docs/guide/graphs.md promises."""
    trial = TABLE[name](data.draw)
    arrays = [np.asarray(x) for x in trial.inputs]
    with wf.Graph().as_default(), wf.Session() as session, np.errstate(all="ignore"):
        xs = [wf.placeholder(x.dtype, [None] * x.ndim) for x in arrays]
        made = trial.call(*xs)
        fetches = list(made) if isinstance(made, (tuple, list)) else made
        try:
            got = session.run(fetches, dict(zip(xs, arrays, strict=True)))
        except wf.errors.ShapeError as error:
            if not re.search("only a size that is 1 in|does not broadcast to", str(error)):
                raise
            return
    check(got, trial, "with open sizes")


# ----------------------------------------------------------------------- nothing is left out
def public() -> Iterator[tuple[str, Any]]:
    """The functions and classes of the public names, with the name of their module in front."""
    for prefix, space in SPACES.items():
        names = getattr(space, "__all__", None) or [n for n in dir(space) if n[:1] != "_"]
        for name in names:
            found = getattr(space, name)
            if callable(found) and not isinstance(found, wf.DType):
                yield prefix.removeprefix("tf1.") + name, found  # a name of tf1 is one of wf, too


def test_every_public_function_has_a_truth_or_a_reason() -> None:
    """A name that is another's function or class is done with that."""
    exempt = {n for names in EXEMPT.values() for n in names.split()}
    done = TABLE.keys() | set(ONE_OP.split()) | ELSEWHERE.keys() | exempt
    known = {id(f) for name, f in public() if name in done}
    missing = sorted(name for name, f in public() if name not in done and id(f) not in known)
    assert not missing, f"no row in composed_truth.py, and no reason why: {missing}"


def test_no_line_is_out_of_date() -> None:
    """Each name is public, stands once, and is nothing that has a row."""
    listed = [n for names in EXEMPT.values() for n in names.split()]
    listed += [*ONE_OP.split(), *ELSEWHERE]
    assert len(set(listed)) == len(listed)
    assert not TABLE.keys() & set(listed)
    names = {p.removeprefix("tf1.") + n for p, space in SPACES.items() for n in dir(space)}
    assert sorted({*TABLE, *listed} - names) == []


def test_tests_that_stand_elsewhere_are_there() -> None:
    files = {path.name: path for path in TESTS.rglob("test_*.py")}
    for file in {file for _, file, _ in ELSEWHERE.values()}:
        tree = ast.parse(files[file].read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert {name for _, named, name in ELSEWHERE.values() if named == file} <= functions


SAMPLES: list[Any] = [np.ones(3), np.ones(3, np.int64), np.ones(3, bool)]


def ops_of(function: Callable[..., Any]) -> list[str] | None:
    """What it makes of one, two or three arrays, but for conversions and constants."""
    for count in (1, 2, 3):
        for sample in SAMPLES:
            try:
                graph = wf.compile(lambda *xs: function(*xs)).trace(*[sample] * count)
            except (TypeError, wf.errors.WeftError):
                continue
            return [op.name for op in graph.ops if op.name not in ("astype", "constant")]
    return None


@pytest.mark.parametrize("name", sorted(set(ONE_OP.split()) - {"bitcast"}))
def test_one_op(name: str) -> None:
    """It is what test_ops_reference.py checks."""
    made = ops_of(getattr(wf, name))
    assert made is not None
    assert len(made) == 1
    assert made[0] in NAMES.split()
