"""Graphs for the dataflow executor as text: a choice, a loop that counts, loops in loops."""

from __future__ import annotations

COUNT = """
graph @count(%n: i64[], %x: i64[]) -> (i64[]) stage=dataflow {
  %e = enter(%x) {frame="w", parallel_iterations=PARALLEL} : i64[]
  %c = enter(%n) {frame="w", constant=true, parallel_iterations=PARALLEL} : i64[]
  %m, %k = merge(%e) {loop=true} : i64[], i32[]
  %t = less(%m, %c) : bool[]
  %l = loop_cond(%t) : bool[]
  %f, %g = switch(%m, %l) : i64[], i64[]
  %x2 = exit(%f) : i64[]
  %one = constant() after(%g) {value=i64[] 1} : i64[]
  %a = add(%g, %one) : i64[]
  %z = next_iteration(%a, %m) : token
  return %x2
}
"""

SELECT = """
graph @select(%p: bool[], %x: f32[3]) -> (f32[3], i32[]) stage=dataflow {
  %f, %t = switch(%x, %p) : f32[3], f32[3]
  %a = negative(%f) : f32[3]
  %b = exp(%t) : f32[3]
  %m, %i = merge(%a, %b) : f32[3], i32[]
  return %m, %i
}
"""

NESTED = """
graph @nested(%n: i64[]) -> (i64[]) stage=dataflow {
  %zero = constant() {value=i64[] 0} : i64[]
  %ei = enter(%zero) {frame="outer"} : i64[]
  %es = enter(%zero) {frame="outer"} : i64[]
  %en = enter(%n) {frame="outer", constant=true} : i64[]
  %i, %ki = merge(%ei) {loop=true} : i64[], i32[]
  %s, %ks = merge(%es) {loop=true} : i64[], i32[]
  %t = less(%i, %en) : bool[]
  %l = loop_cond(%t) : bool[]
  %if, %it = switch(%i, %l) : i64[], i64[]
  %sf, %st = switch(%s, %l) : i64[], i64[]
  %result = exit(%sf) : i64[]
  %z2 = constant() after(%it) {value=i64[] 0} : i64[]
  %ej = enter(%z2) {frame="inner"} : i64[]
  %et = enter(%st) {frame="inner"} : i64[]
  %eb = enter(%it) {frame="inner", constant=true} : i64[]
  %j, %kj = merge(%ej) {loop=true} : i64[], i32[]
  %q, %kq = merge(%et) {loop=true} : i64[], i32[]
  %t2 = less(%j, %eb) : bool[]
  %l2 = loop_cond(%t2) : bool[]
  %jf, %jt = switch(%j, %l2) : i64[], i64[]
  %qf, %qt = switch(%q, %l2) : i64[], i64[]
  %sum = exit(%qf) : i64[]
  %one = constant() after(%jt) {value=i64[] 1} : i64[]
  %j2 = add(%jt, %one) : i64[]
  %q2 = add(%qt, %jt) : i64[]
  %b1 = next_iteration(%j2, %j) : token
  %b2 = next_iteration(%q2, %q) : token
  %one2 = constant() after(%it) {value=i64[] 1} : i64[]
  %i2 = add(%it, %one2) : i64[]
  %b3 = next_iteration(%i2, %i) : token
  %b4 = next_iteration(%sum, %s) : token
  return %result
}
"""
