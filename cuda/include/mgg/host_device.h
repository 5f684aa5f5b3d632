// MGG_BOTH marks functions that host and device both call.
#pragma once

#if defined(__CUDACC__)
#define MGG_BOTH __host__ __device__ inline
#else
#define MGG_BOTH inline
#endif
