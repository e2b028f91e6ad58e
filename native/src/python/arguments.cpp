#include "arguments.h"

#include <nanobind/stl/string.h>

#include <climits>
#include <cmath>
#include <stdexcept>

namespace headrace {
namespace {

bool is_contiguous(const nb::ndarray<nb::ro>& array) {
  int64_t stride = 1;
  for (size_t axis = array.ndim(); axis-- > 0;) {
    if (array.shape(axis) != 1 && array.stride(axis) != stride) return false;
    stride *= static_cast<int64_t>(array.shape(axis));
  }
  return true;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (const int64_t size : shape) text += (size < 0 ? "any" : std::to_string(size)) + ", ";
  if (text.size() > 1) text.resize(text.size() - 2);
  return text + ")";
}

template <class T>
T cast(nb::handle value, const std::string& name, const char* what) {
  T result;
  if (!nb::try_cast(value, result)) {
    throw nb::type_error((name + ": needs " + what).c_str());
  }
  return result;
}

}  // namespace

nb::ndarray<nb::ro> check_array(nb::handle value, const std::string& name, nb::dlpack::dtype dtype,
                                const char* dtype_name) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(value, array) || array.device_type() != nb::device::cpu::value) {
    throw std::invalid_argument(name + ": needs an array of " + dtype_name);
  }
  if (array.dtype() != dtype) {
    throw std::invalid_argument(name + ": needs dtype " + dtype_name);
  }
  if (array.size() > 0 && !is_contiguous(array)) {
    throw std::invalid_argument(name + ": needs a C-contiguous array");
  }
  return array;
}

void check_shape(const nb::ndarray<nb::ro>& array, const std::string& name,
                 std::initializer_list<int64_t> shape) {
  bool fits = array.ndim() == shape.size();
  std::vector<int64_t> actual;
  for (size_t axis = 0; axis < array.ndim(); axis++) {
    actual.push_back(static_cast<int64_t>(array.shape(axis)));
    if (fits) {
      const int64_t wanted = shape.begin()[axis];
      fits = wanted < 0 ? actual.back() <= INT_MAX : wanted == actual.back();
    }
  }
  if (!fits) {
    throw std::invalid_argument(name + ": needs shape " + shape_text(shape) + ", not " +
                                shape_text(actual));
  }
}

int int_argument(nb::handle value, const std::string& name) {
  if (!PyIndex_Check(value.ptr())) throw nb::type_error((name + ": needs an integer").c_str());
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || number < INT_MIN || number > INT_MAX) {
    throw std::invalid_argument(name + ": does not fit 32 bits");
  }
  return static_cast<int>(number);
}

nb::handle Keywords::take(const char* name) {
  if (!values_.contains(name)) {
    throw nb::type_error((std::string("missing keyword argument '") + name + "'").c_str());
  }
  taken_.insert(name);
  return values_[name];
}

int Keywords::integer(const char* name) { return int_argument(take(name), name); }

float Keywords::number(const char* name) {
  const float value = static_cast<float>(cast<double>(take(name), name, "a number"));
  if (!std::isfinite(value)) {
    throw std::invalid_argument(std::string(name) + ": needs a finite number");
  }
  return value;
}

bool Keywords::flag(const char* name) { return cast<bool>(take(name), name, "a bool"); }

std::string Keywords::text(const char* name) {
  return cast<std::string>(take(name), name, "a string");
}

std::optional<std::string> Keywords::optional_text(const char* name) {
  if (!values_.contains(name) || values_[name].is_none()) {
    taken_.insert(name);
    return std::nullopt;
  }
  return text(name);
}

std::vector<int> Keywords::integers(const char* name) {
  const nb::handle values = take(name);
  if (!nb::isinstance<nb::list>(values) && !nb::isinstance<nb::tuple>(values)) {
    throw nb::type_error((std::string(name) + ": needs a list of integers").c_str());
  }
  std::vector<int> result;
  for (const nb::handle value : values) result.push_back(int_argument(value, name));
  return result;
}

void Keywords::finish() const {
  for (const auto& [key, value] : values_) {
    const auto name = nb::cast<std::string>(key);
    if (!taken_.contains(name)) {
      throw nb::type_error(("unexpected keyword argument '" + name + "'").c_str());
    }
  }
}

int choice(const std::string& value, const std::string& name,
           std::initializer_list<const char*> choices) {
  std::string all;
  int index = 0;
  for (const char* candidate : choices) {
    if (value == candidate) return index;
    all += std::string(all.empty() ? "" : ", ") + "'" + candidate + "'";
    index++;
  }
  throw std::invalid_argument(name + ": '" + value + "' is not one of " + all);
}

}  // namespace headrace
