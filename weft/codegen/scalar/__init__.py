"""One elementwise operation on one element, as LLVM instructions, for every dtype."""
