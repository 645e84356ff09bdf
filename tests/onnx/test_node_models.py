"""ONNX's own tests of single operators: each core one, at its newest opset and at older ones."""

from __future__ import annotations

from typing import Any

import onnx_cases
import pytest

import weft as wf

#: Cases that cannot pass, and why.
DECODES = "decodes the files of images, which the reference does by Pillow"
DRAWS = "expects the numbers of NumPy's generator"
EXCEPTIONS = {
    **{f"test_image_decoder_decode_{n}": DECODES for n in (
        "bmp_rgb", "jpeg2k_rgb", "jpeg_bgr", "jpeg_grayscale", "jpeg_rgb", "png_rgb", "pnm_rgb",
        "tiff_rgb", "webp_rgb",
    )},
    **{f"test_training_dropout{n}": DRAWS for n in ("", "_default", "_default_mask", "_mask")},
    **{f"test_bernoulli{n}": DRAWS for n in (
        "", "_double", "_double_expanded", "_expanded", "_seed", "_seed_expanded",
    )},
}  # fmt: skip


def outcome(case: Any, compiled: bool) -> str:
    """What is wrong with what weft makes of a case; "" for nothing."""
    try:
        model = wf.onnx.load(case.model)
        for given, wanted in case.data_sets:
            inputs = [onnx_cases.as_held(x) for x in given]
            made = model(*inputs) if compiled else model.apply({}, *inputs)
            assert tuple(made) == model.outputs
            for got, want in zip(made.values(), wanted, strict=True):
                wrong = onnx_cases.difference(got, onnx_cases.as_held(want), case.rtol, case.atol)
                if wrong:
                    return wrong
    except wf.errors.WeftError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.slow  # ONNX computes all cases first
def test_every_case() -> None:
    """Eagerly: each op by itself. Exceptions fail, all others pass."""
    cases = onnx_cases.node_cases()
    assert len(cases) > 1800
    wrong = {c.name: w for c in cases if (w := outcome(c, compiled=False))}
    unexpected = {n: w for n, w in wrong.items() if n not in EXCEPTIONS}
    assert not unexpected, "\n".join(f"{n}: {w:.200}" for n, w in unexpected.items())
    assert wrong.keys() == EXCEPTIONS.keys()
    assert len(EXCEPTIONS) < 0.03 * len(cases)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_compiled(part: int) -> None:
    """As one native step; each fifth case."""
    cases = [c for c in onnx_cases.node_cases()[part::20] if c.name not in EXCEPTIONS]
    wrong = {c.name: w for c in cases if (w := outcome(c, compiled=True))}
    assert not wrong, "\n".join(f"{n}: {w:.200}" for n, w in wrong.items())


def test_every_operator_has_a_function_or_a_body() -> None:
    """Of the newest opset: what no function here stands for has one that ONNX gives."""
    import onnx.defs

    from weft.frontend.onnx import table

    newest = onnx.defs.onnx_opset_version()
    schemas: Any = onnx.defs.get_all_schemas()
    missing = sorted(
        s.name
        for s in schemas
        if s.domain == "" and not s.deprecated and table.find("", s.name, newest) is None
        and not s.has_function and not s.has_context_dependent_function
    )  # fmt: skip
    assert missing == ["ImageDecoder"]
