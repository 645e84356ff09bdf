"""A graph for the command line, as text."""

from __future__ import annotations

STEP = """\
graph @step(%x: f32[2,3], %rate: f32[]) -> (f32[2,3], token) stage=traced {
  %w = variable() {name="w", dtype=f32, shape=[2, 3]} : ref<f32[2,3]> loc("m.py":1:1)
  %a = read(%w) : f32[2,3] loc("m.py":2:1)
  %r = broadcast_to(%rate) {shape=[2, 3]} : f32[2,3] loc("m.py":3:1)
  %b = multiply(%x, %r) : f32[2,3] loc("m.py":4:1)
  %c = multiply(%x, %r) : f32[2,3] loc("m.py":5:1)
  %d = add(%b, %c) : f32[2,3] loc("m.py":6:1)
  %e = subtract(%a, %d) : f32[2,3] loc("m.py":7:1)
  %t = assign(%w, %e) : token loc("m.py":8:1)
  return %e, %t
}
"""
