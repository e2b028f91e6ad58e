// How a thread's floating-point unit rounds while it computes.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headrace {

// Rounds to nearest and keeps denormals until it goes, whatever the thread's owner set: a row's
// bits must not depend on which thread takes it. Does nothing where there is no MXCSR.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatMode() { _mm_setcsr(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // as a process starts: every exception masked
  unsigned before_;
#else
  FloatMode() {}
#endif
};

}  // namespace headrace
