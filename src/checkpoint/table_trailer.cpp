// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/table_trailer.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "serialize/checksum.h"

namespace lockstep::distributed_checkpoint {
namespace {

constexpr std::string_view kTrailer = "\n# lockstep ";

std::string trailer_of(std::string_view front, std::size_t structure) {
  return fmt::format("{}{:016x} {:08x}\n", kTrailer, structure,
                     serialize::crc32_of(std::as_bytes(std::span(front))));
}

}  // namespace

std::string with_trailer(const TableParts& parts) {
  std::string front(parts.pickle);
  front += parts.structure;
  return front + trailer_of(front, parts.structure.size());
}

TableParts without_trailer(std::string_view text) {
  const auto length = trailer_of("", 0).size();
  const auto front = text.substr(0, text.size() - std::min(text.size(), length));
  const auto trailer = text.substr(front.size());
  if (trailer.size() < length || !trailer.starts_with(kTrailer)) return {.pickle = text, .structure = {}};
  std::size_t structure = 0;
  const auto* digits = trailer.data() + kTrailer.size();
  std::from_chars(digits, digits + 16, structure, 16);
  if (trailer != trailer_of(front, structure) || structure > front.size()) {
    throw CheckpointError("the table of the distributed checkpoint is damaged: its checksum is another one");
  }
  return {.pickle = front.substr(0, front.size() - structure),
          .structure = front.substr(front.size() - structure)};
}

}  // namespace lockstep::distributed_checkpoint
