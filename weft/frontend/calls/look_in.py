"""What a compiled function tells about itself: graph, IR, explanation, machine code, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.frontend.calls.compiled import Compiled
from weft.frontend.calls.signature import Signature, differences
from weft.frontend.calls.specializations import CacheInfo, Specializations
from weft.ir.graph import Graph
from weft.runtime.native.executable import Executable

if TYPE_CHECKING:
    from weft.frontend.bench.cost import Cost


class LookIn:
    """Mixed into `CompiledFunction`: each method takes the arguments of a call (values, or
    `TensorType`s in place of tensors) and compiles for them if that is not done yet."""

    _name: str
    _parameters: tuple[str, ...]
    _specializations: Specializations[Compiled]

    if TYPE_CHECKING:  # no ABC: CPython makes native classes of those with no metaclass only

        def _specialized(self, args: Any, kwargs: Any) -> Compiled: ...
        def _key(self, args: Any, kwargs: Any) -> tuple[Any, list[Any], list[Any]]: ...

    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph as traced for these arguments (values, or `TensorType`s in place of
        tensors)."""
        return self._specialized(args, kwargs).traced.graph

    def ir(self, *args: Any, after: str | None = None, **kwargs: Any) -> str:
        """The text of the graph after the pass `after` ("traced": before all; None: after the
        last).

        PassError for a pass that is not in the pipeline.
        """
        # who only calls does not wait for these modules, which know most passes
        from weft.frontend.calls.explain import graph_after
        from weft.ir.text.printer import print_graph

        return print_graph(graph_after(self._specialized(args, kwargs).reports(), after))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Why this was compiled, what each pass did, what was fused and what not, and the memory
        plan."""
        from weft.frontend.calls.explain import explain
        from weft.frontend.calls.explain_gpu import explain_on_gpu

        made = self._specialized(args, kwargs)
        fields = made.signature.fields(self._parameters)
        title = (
            f"{self._name}: specialisation {made.number} of {len(self._specializations.entries)}"
        )
        executable, info = made.executable(), self._specializations.info()
        kept = (
            f"\n  signatures: {info.size} kept of at most {info.limit}, the least recently used go "
            f"first; {info.made} made so far"
        )
        if not isinstance(executable, Executable):
            return explain_on_gpu(title, fields, made.reasons, made.location, executable) + kept
        text = explain(title, fields, made.reasons, made.location, executable) + kept
        asked = made.math_mode != "ieee"
        return text + f"\nmath={made.math_mode!r} is for GPUs: the CPU has no such mode" * asked

    def llvm(self, *args: Any, **kwargs: Any) -> str:
        """Optimised LLVM IR of the kernels that one call runs. UnsupportedError on a GPU."""
        return self._specialized(args, kwargs).on_cpu("llvm").llvm()

    def asm(self, *args: Any, **kwargs: Any) -> str:
        """Assembly of the kernels that one call runs, for this machine; on a GPU, PTX."""
        return self._specialized(args, kwargs).executable().asm()

    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """Measure one call kernel by kernel: time, exact work, rates, share of the machine's peak,
        assembly, source lines (docs/bench.md). Takes some seconds; `print` the result for a table.

        Variables keep their values (copies of them are used), and so do the arguments. In place of
        a `TensorType` random values are used. Errors as those of a call.
        """
        # nor who does not measure for these
        from weft.frontend.bench.measure import inputs_of, measure

        made = self._specialized(args, kwargs)
        step = made.on_cpu("cost")
        inputs = inputs_of(self._key(args, kwargs), made.traced.graph.args)
        return measure(step, inputs, made.traced.variables, self._name)

    def cache_info(self) -> CacheInfo:
        """How many specialisations there are, were made, and were dropped."""
        return self._specializations.info()

    def _reasons(self, signature: Signature) -> list[str]:
        """Why `signature` needs a specialisation: its differences from the nearest one there is."""
        others = list(self._specializations.entries.copy().values())
        if not others:
            return ["first call"]
        options = [(differences(signature, o.signature, self._parameters), o) for o in others]
        lines, nearest = min(options, key=lambda option: len(option[0]))
        return [f"{line} (specialisation {nearest.number})" for line in lines]
