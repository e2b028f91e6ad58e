#include "weights.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "arguments.h"
#include "bindings.h"
#include "stored.h"

namespace headrace {
namespace {

using EntryArgument = std::tuple<std::string, std::string, std::string, nb::object, nb::object>;

Entry entry_from(const EntryArgument& argument) {
  const auto& [name, kind, weight, n, k] = argument;
  Entry entry;
  entry.name = name;
  entry.kind =
      static_cast<Entry::Kind>(choice(kind, "entries: kind", {"matrix", "vector", "table"}));
  entry.weight = WeightKind::bf16;
  if (entry.kind == Entry::Kind::matrix) {
    entry.weight = static_cast<WeightKind>(
        choice(weight, "entries: weight", {"bf16", "i8", "i8a8", "q8", "q4"}));
  } else if (!weight.empty()) {
    throw std::invalid_argument("entries: '" + name + "' is no matrix, its weight is ''");
  }
  entry.n = int_argument(n, "entries: n");
  entry.k = int_argument(k, "entries: k");
  return entry;
}

WeightsObject create(const std::optional<std::string>& path, const std::string& tag,
                     const std::vector<EntryArgument>& entries, int num_threads,
                     const std::optional<std::string>& isa) {
  if (path && path->empty()) throw std::invalid_argument("path: empty");
  std::vector<Entry> parsed;
  for (const EntryArgument& entry : entries) parsed.push_back(entry_from(entry));
  const nb::gil_scoped_release release;
  return {
      Weights::create(path.value_or(""), tag, kernels_for(isa), std::move(parsed), num_threads)};
}

std::optional<WeightsObject> open(const std::string& path, const std::string& tag, int num_threads,
                                  const std::optional<std::string>& isa) {
  const nb::gil_scoped_release release;
  auto weights = Weights::open(path, tag, kernels_for(isa), num_threads);
  if (!weights) return std::nullopt;
  return WeightsObject{std::move(weights)};
}

using PartArgument = std::tuple<std::string, nb::object, nb::object>;

void put(const WeightsObject& self, const std::string& name, const std::vector<PartArgument>& parts,
         bool interleaved) {
  std::vector<ArrayArgument<uint8_t>> arrays;  // keep the bytes
  std::vector<Stored> stored;
  for (const auto& [format, bytes, rows] : parts) {
    arrays.push_back(array_argument<uint8_t>(bytes, "parts: bytes"));
    stored.push_back({format, int_argument(rows, "parts: rows"), arrays.back().values});
  }
  const nb::gil_scoped_release release;
  self.weights->put(name, stored, interleaved);
}

std::vector<std::string> names(const WeightsObject& self) {
  std::vector<std::string> all;
  for (const Entry& entry : self.weights->entries()) all.push_back(entry.name);
  return all;
}

const Entry& find(const Weights& weights, const std::string& name) {
  for (const Entry& entry : weights.entries()) {
    if (entry.name == name) return entry;
  }
  throw std::invalid_argument("name: there is no '" + name + "'");
}

// Packed columns of a matrix, padding included, rows of a table, or the one row of a vector.
void read_row(const Weights& weights, const Entry& entry, int row, float* out) {
  const size_t k = static_cast<size_t>(entry.k);
  switch (entry.kind) {
    case Entry::Kind::matrix:
      weights.kernels().read_column(weights.matrix(entry.name), row, out);
      break;
    case Entry::Kind::vector: {
      const auto values = weights.vector(entry.name);
      std::copy(values.begin(), values.end(), out);
      break;
    }
    case Entry::Kind::table: {
      const auto values = weights.table(entry.name).subspan(static_cast<size_t>(row) * k, k);
      for (size_t i = 0; i < k; i++) out[i] = bf16_to_float(values[i]);
      break;
    }
  }
}

nb::object rows(const WeightsObject& self, const std::string& name, const nb::object& first_row,
                const nb::object& num_rows) {
  const Weights& weights = *self.weights;
  const Entry& entry = find(weights, name);
  const int first = int_argument(first_row, "first"), count = int_argument(num_rows, "count");
  const int end = entry.kind == Entry::Kind::matrix ? round_up(entry.n, kPanel) : entry.n;
  if (first < 0 || first > end) {
    throw std::invalid_argument("first: needs 0 to " + std::to_string(end));
  }
  if (count < 0 || count > end - first) {
    throw std::invalid_argument("count: needs 0 to " + std::to_string(end - first));
  }
  const size_t k = static_cast<size_t>(entry.k), height = static_cast<size_t>(count);
  std::unique_ptr<float[]> out(new float[height * k]);
  for (int i = 0; i < count; i++) {
    read_row(weights, entry, first + i, out.get() + static_cast<size_t>(i) * k);
  }
  return new_array(out.release(), {height, k});
}

}  // namespace

void bind_weights(nb::module_& module) {
  nb::class_<WeightsObject>(module, "Weights")
      .def_static("create", &create, nb::arg("path").none(), nb::arg("tag"), nb::arg("entries"),
                  nb::kw_only(), nb::arg("num_threads"), nb::arg("isa") = nb::none())
      .def_static("open", &open, nb::arg("path"), nb::arg("tag"), nb::kw_only(),
                  nb::arg("num_threads"), nb::arg("isa") = nb::none())
      .def("put", &put, nb::arg("name"), nb::arg("parts"), nb::kw_only(),
           nb::arg("interleaved") = false)
      .def(
          "finish", [](const WeightsObject& self) { self.weights->finish(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("rows", &rows, nb::arg("name"), nb::arg("first"), nb::arg("count"))
      .def_prop_ro("names", &names)
      .def_prop_ro("num_bytes", [](const WeightsObject& self) { return self.weights->num_bytes(); })
      .def_prop_ro("isa", [](const WeightsObject& self) { return self.weights->kernels().isa; });
}

}  // namespace headrace
