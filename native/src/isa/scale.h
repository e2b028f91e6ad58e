// How a panel stores the scales of its groups: as halves where the processor reads those.
#pragma once

#include "../kernels.h"
#include "rows.h"
#include "vec.h"

namespace headrace {
namespace {

#if defined(__F16C__)
typedef uint16_t Scale;
HEADRACE_INLINE Scale to_scale(float x) { return static_cast<Scale>(_cvtss_sh(x, 0)); }
HEADRACE_INLINE float from_scale(Scale s) { return _cvtsh_ss(s); }
HEADRACE_INLINE Floats load_scales(const uint8_t* p, int c) {
  const uint8_t* place = p + static_cast<size_t>(c) * sizeof(Scale);
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(load_as<__m256i>(place));
#else
  return (Floats)_mm256_cvtph_ps(load_as<__m128i>(place));
#endif
}
#else
typedef float Scale;
HEADRACE_INLINE Scale to_scale(float x) { return x; }
HEADRACE_INLINE float from_scale(Scale s) { return s; }
HEADRACE_INLINE Floats load_scales(const uint8_t* p, int c) {
  return load_as<Floats>(p + static_cast<size_t>(c) * sizeof(Scale));
}
#endif

}  // namespace
}  // namespace headrace
