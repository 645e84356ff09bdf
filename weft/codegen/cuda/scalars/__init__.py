"""One elementwise operation on one element, as the text of kernel source, for every dtype."""
