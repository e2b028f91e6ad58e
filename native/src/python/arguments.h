// Python values on their way in, checked: a ValueError or TypeError names the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace headrace {

namespace nb = nanobind;

// A contiguous array of T in the machine's memory. Keeps what it was made of.
template <class T>
struct ArrayArgument {
  nb::ndarray<nb::ro> array;
  std::span<const T> values;
  size_t ndim() const { return array.ndim(); }
  size_t shape(size_t axis) const { return array.shape(axis); }
};

nb::ndarray<nb::ro> check_array(nb::handle value, const std::string& name, nb::dlpack::dtype dtype,
                                const char* dtype_name);
void check_shape(const nb::ndarray<nb::ro>& array, const std::string& name,
                 std::initializer_list<int64_t> shape);  // -1: any

template <class T>
constexpr const char* kDtypeName = nullptr;
template <>
inline constexpr const char* kDtypeName<int32_t> = "int32";
template <>
inline constexpr const char* kDtypeName<uint32_t> = "uint32";
template <>
inline constexpr const char* kDtypeName<uint8_t> = "uint8";
template <>
inline constexpr const char* kDtypeName<float> = "float32";
template <>
inline constexpr const char* kDtypeName<double> = "float64";

template <class T>
ArrayArgument<T> array_argument(nb::handle value, const std::string& name) {
  auto array = check_array(value, name, nb::dtype<T>(), kDtypeName<T>);
  const auto* data = static_cast<const T*>(array.data());
  const size_t size = array.size();
  return {std::move(array), {data, size}};
}

template <class T>
ArrayArgument<T> array_argument(nb::handle value, const std::string& name,
                                std::initializer_list<int64_t> shape) {
  auto argument = array_argument<T>(value, name);
  check_shape(argument.array, name, shape);
  return argument;
}

int int_argument(nb::handle value, const std::string& name);

// Keyword arguments, each to be taken once; `finish` refuses what nobody took.
class Keywords {
 public:
  explicit Keywords(const nb::kwargs& values) : values_(values) {}
  int integer(const char* name);
  float number(const char* name);
  bool flag(const char* name);
  std::string text(const char* name);
  std::optional<std::string> optional_text(const char* name);  // absent and None are the same
  std::vector<int> integers(const char* name);
  void finish() const;

 private:
  nb::handle take(const char* name);
  const nb::kwargs& values_;
  std::set<std::string> taken_;
};

// One of `choices`, by its index.
int choice(const std::string& value, const std::string& name,
           std::initializer_list<const char*> choices);

// A numpy array that owns its numbers.
template <class T>
nb::object new_array(T* data, std::initializer_list<size_t> shape) {
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::c_contig>(data, shape, owner));
}

}  // namespace headrace
