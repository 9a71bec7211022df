// SPDX-License-Identifier: BSD-3-Clause
#include "kinds.h"

#include <algorithm>

#include "base/throw_error.h"

namespace lockstep::bench {
namespace {

template <typename Named>
std::string names_of(const std::vector<Named>& all) {
  std::string names;
  for (const auto& each : all) names += (names.empty() ? "" : ", ") + each.name;
  return names;
}

template <typename Named>
const Named& find_in(const std::vector<Named>& all, const std::string& what, const std::string& name) {
  const auto found = std::ranges::find(all, name, &Named::name);
  if (found != all.end()) return *found;
  throw_error<ArgumentError>("\"{}\" is not a {}; choose from {}", name, what, names_of(all));
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {.name = "all-reduce", .reduces = true, .bus_share = 2},
      {.name = "all-gather", .in_parts = true},
      {.name = "reduce-scatter", .reduces = true, .in_parts = true},
      {.name = "broadcast", .without_own_part = false},
      {.name = "reduce", .reduces = true, .without_own_part = false},
      {.name = "gather", .in_parts = true},
      {.name = "scatter", .in_parts = true},
      {.name = "all-to-all", .in_parts = true},
      {.name = "send-recv", .without_own_part = false},
      {.name = "barrier", .moves_data = false, .without_own_part = false},
  };
  return all;
}

const Kind& find_kind(const std::string& name) {
  auto with_hyphens = name;
  std::ranges::replace(with_hyphens, '_', '-');
  const auto found = std::ranges::find(kinds(), with_hyphens, &Kind::name);
  return found != kinds().end() ? *found : find_in(kinds(), "collective", name);
}

std::string kind_names() { return names_of(kinds()); }

double bus_factor(const Kind& kind, int ranks) {
  return kind.bus_share * (kind.without_own_part ? static_cast<double>(ranks - 1) / ranks : 1);
}

std::int64_t element_count(const Kind& kind, std::size_t bytes, std::size_t element_size, int ranks) {
  const std::int64_t parts = kind.in_parts ? ranks : 1;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes / element_size) / parts) * parts;
}

const std::vector<DType>& dtypes() {
  static const std::vector<DType> all{{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2},
                                      {"int32", 4},   {"int64", 8},   {"uint8", 1}};
  return all;
}

const DType& find_dtype(const std::string& name) { return find_in(dtypes(), "dtype", name); }

std::string dtype_names() { return names_of(dtypes()); }

}  // namespace lockstep::bench
