// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/request.h"

#include <array>

#include <fmt/format.h>

namespace lockstep::shm {

const char* name_of(Kind kind) {
  constexpr std::array names{"all_reduce", "broadcast",      "reduce",     "all_gather", "gather",
                             "scatter",    "reduce_scatter", "all_to_all", "barrier"};
  return names.at(static_cast<std::size_t>(kind));
}

const char* name_of(Element element) {
  constexpr std::array names{"f32", "f64", "f16", "bf16", "i8",  "u8",  "i16",
                             "i32", "i64", "u16", "u32",  "u64", "bool"};
  return names.at(static_cast<std::size_t>(element));
}

const char* name_of(Reduction reduction) {
  constexpr std::array names{"sum", "average", "product", "min", "max", "band", "bor", "bxor"};
  return names.at(static_cast<std::size_t>(reduction));
}

std::uint64_t size_of(const Request& request) {
  if (request.kind == Kind::all_gather || request.kind == Kind::gather) return request.inputs.front().bytes;
  if (request.kind != Kind::all_to_all) return request.outputs.empty() ? 0 : request.outputs.front().bytes;
  std::uint64_t sum = 0;
  for (const auto& input : request.inputs) sum += input.bytes;
  return sum;
}

std::uint64_t packed(const Request& request) {
  const auto reduction = has_reduction(request.kind) ? request.reduction : Reduction::sum;
  const auto root = has_root(request.kind) ? static_cast<std::uint64_t>(request.root) : 0;
  return static_cast<std::uint64_t>(request.kind) | static_cast<std::uint64_t>(request.element) << 8U |
         static_cast<std::uint64_t>(reduction) << 16U | root << 24U;
}

std::string describe(std::uint64_t packed, std::uint64_t bytes) {
  const auto kind = static_cast<Kind>(packed & 0xFFU);
  std::string text = name_of(kind);
  if (kind == Kind::barrier) return text;
  const auto element = static_cast<Element>(packed >> 8U & 0xFFU);
  text += fmt::format(" of {} x {}", bytes / size_of(element), name_of(element));
  if (has_reduction(kind))
    text += fmt::format(" ({})", name_of(static_cast<Reduction>(packed >> 16U & 0xFFU)));
  if (has_root(kind)) text += fmt::format(", root {}", packed >> 24U);
  return text;
}

}  // namespace lockstep::shm
