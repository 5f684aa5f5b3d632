// Definitions of the standard headers that kernels use, for NVRTC, which has no standard headers.
#pragma once

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
namespace std {
using ::memcpy;
}
#define offsetof(type, member) __INTADDR__(&static_cast<type*>(nullptr)->member)
#endif
