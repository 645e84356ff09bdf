"""What a device is made of: NVIDIA's driver, or the emulator."""
