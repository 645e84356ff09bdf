"""A graph that adds stacks of stacks, as text."""

from __future__ import annotations

SUMS = """
graph @sums(%x: f32[3], %y: f32[3]) -> (f32[3], f32[3], f32[3], f32[3]) stage=traced {
  %0 = stack_new() {dtype=f32, shape=[3], depth=1} : stack<f32[3]>
  %1 = stack_push(%0, %x) : stack<f32[3]>
  %2 = stack_push(%1, %y) : stack<f32[3]>
  %3 = stack_push(%0, %y) : stack<f32[3]>
  %4 = stack_new() {dtype=f32, shape=[3], depth=2} : stack<stack<f32[3]>>
  %5 = stack_push(%4, %2) : stack<stack<f32[3]>>
  %6 = stack_push(%5, %3) : stack<stack<f32[3]>>
  %7 = stack_push(%4, %2) : stack<stack<f32[3]>>
  %8 = stack_add(%6, %7) : stack<stack<f32[3]>>
  %9, %10 = stack_pop(%8) : stack<stack<f32[3]>>, stack<f32[3]>
  %11, %12 = stack_pop(%10) : stack<f32[3]>, f32[3]
  %13, %14 = stack_pop(%11) : stack<f32[3]>, f32[3]
  %15, %16 = stack_pop(%9) : stack<stack<f32[3]>>, stack<f32[3]>
  %17, %18 = stack_pop(%16) : stack<f32[3]>, f32[3]
  %19, %20 = stack_pop(%15) : stack<stack<f32[3]>>, stack<f32[3]>
  %21, %22 = stack_pop(%20) : stack<f32[3]>, f32[3]
  return %12, %14, %18, %22
}
"""
