"""Activations in 8 bits, as the CPU rounds them for integer weights: `kernels/src/cpu/input/encode.rs`."""

COLUMNS = 16  # that share a scale


def in_8_bits(x):
    """`x` [..., columns] as codes from -127 to 127, times a scale for each sixteen columns of a row."""
    parts = x.reshape(*x.shape[:-1], -1, COLUMNS)
    most = parts.abs().amax(-1, keepdim=True)
    codes = (parts * (127.0 / most)).nan_to_num().round().clamp(-127, 127)  # of zeros: zeros
    return (codes * (most / 127.0)).reshape(x.shape)
