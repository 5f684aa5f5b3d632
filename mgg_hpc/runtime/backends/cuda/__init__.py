"""The backend of GPUs: kernels, memory and NVSHMEM."""
