"""From a config to a launch: compiled, cached, loaded on a device, told where its arrays lie."""
