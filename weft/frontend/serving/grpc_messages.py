"""The messages of `inference.GRPCInferenceService` and `grpc.health.v1.Health` as classes of
protobuf.

Sources: grpc_service.proto of github.com/triton-inference-server/common, whose messages without
Triton's own fields are those of github.com/kserve/open-inference-protocol, and health.proto of
github.com/grpc/grpc-proto. The types are made from the table below, in a pool of their own, so
nothing is generated, and clients in the same process may have theirs. On the wire there are numbers
of fields and no names of types."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: A message a line: its name, and its fields with the numbers 1, 2, ...; `*`: repeated, `|`: one of
#: those marked so, `{}`: by names.
_TABLE = """
ServerLiveRequest
ServerLiveResponse: bool live
ServerReadyRequest
ServerReadyResponse: bool ready
ModelReadyRequest: string name, string version
ModelReadyResponse: bool ready
ServerMetadataRequest
ServerMetadataResponse: string name, string version, string* extensions
ModelMetadataRequest: string name, string version
ModelMetadataResponse: string name, string* versions, string platform, Tensor* inputs, Tensor* outputs
Tensor: string name, string datatype, int64* shape
Parameter: bool| bool_param, int64| int64_param, string| string_param, double| double_param, uint64| uint64_param
Contents: bool* bool_contents, int32* int_contents, int64* int64_contents, uint32* uint_contents, uint64* uint64_contents, float* fp32_contents, double* fp64_contents, bytes* bytes_contents
InputTensor: string name, string datatype, int64* shape, Parameter{} parameters, Contents contents
RequestedOutput: string name, Parameter{} parameters
OutputTensor: string name, string datatype, int64* shape, Parameter{} parameters, Contents contents
ModelInferRequest: string model_name, string model_version, string id, Parameter{} parameters, InputTensor* inputs, RequestedOutput* outputs, bytes* raw_input_contents
ModelInferResponse: string model_name, string model_version, string id, Parameter{} parameters, OutputTensor* outputs, bytes* raw_output_contents
ModelStreamInferResponse: string error_message, ModelInferResponse infer_response
RepositoryIndexRequest: string repository_name, bool ready
ModelIndex: string name, string version, string state, string reason
RepositoryIndexResponse: ModelIndex* models
RepositoryParameter: bool| bool_param, int64| int64_param, string| string_param, bytes| bytes_param
RepositoryModelLoadRequest: string repository_name, string model_name, RepositoryParameter{} parameters
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: string repository_name, string model_name, RepositoryParameter{} parameters
RepositoryModelUnloadResponse
ModelStatisticsRequest: string name, string version
Duration: uint64 count, uint64 ns
InferStatistics: Duration success, Duration fail, Duration queue, Duration compute_input, Duration compute_infer, Duration compute_output, Duration cache_hit, Duration cache_miss
BatchStatistics: uint64 batch_size, Duration compute_input, Duration compute_infer, Duration compute_output
ModelStatistics: string name, string version, uint64 last_inference, uint64 inference_count, uint64 execution_count, InferStatistics inference_stats, BatchStatistics* batch_stats
ModelStatisticsResponse: ModelStatistics* model_stats
HealthCheckRequest: string service
HealthCheckResponse: int32 status
"""  # noqa: E501
_Field = descriptor_pb2.FieldDescriptorProto
#: The field of `Contents` that has values of a datatype; others have raw bytes alone.
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@cache
def messages() -> dict[str, Any]:
    """The classes, by the names in the table."""
    file = descriptor_pb2.FileDescriptorProto(
        name="weft/inference.proto", package="inference", syntax="proto3"
    )
    names = []
    for line in _TABLE.split("\n"):
        name, _, fields = line.partition(":")
        if name:
            names.append(name)
            _add(file.message_type.add(name=name), [f.split() for f in fields.split(",") if f])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"inference.{name}") for name in names}
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


def _add(message: Any, fields: list[list[str]]) -> None:
    for number, (kind, name) in enumerate(fields, 1):
        base = kind.rstrip("*|{}")
        if kind.endswith("{}"):
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            _add(entry, [["string", "key"], [base, "value"]])
            _set(message.field.add(name=name, number=number), f"{message.name}.{entry.name}", True)
            continue
        field = message.field.add(name=name, number=number)
        _set(field, base, kind.endswith("*"))
        if kind.endswith("|"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="parameter_choice")
            field.oneof_index = 0


def _set(field: Any, kind: str, is_repeated: bool) -> None:
    field.label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
    if kind[0].islower():
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".inference.{kind}"
