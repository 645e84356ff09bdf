"""Queues and the other host-side resources by TensorFlow 1's names, called eagerly."""
