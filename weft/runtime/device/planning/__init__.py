"""From a graph to a plan of launches for a device."""
