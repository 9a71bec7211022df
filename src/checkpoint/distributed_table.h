// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

namespace lockstep::distributed_checkpoint {

using Sizes = std::vector<std::int64_t>;

/// Where a file has a piece of a tensor, or an object.
struct Place {
  std::string file{};
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct Piece {
  Sizes offsets{};
  Sizes sizes{};
  Place place{};
};

struct Entry {
  bool is_tensor = false;
  at::ScalarType dtype = at::kFloat;
  Sizes sizes{};
  std::vector<Piece> pieces{};  // of a tensor
  Place place{};                // of an object
  Tuple path{};                 // the keys and indices that lead to it
};

/// By name, in the order of the table.
using Entries = std::vector<std::pair<std::string, Entry>>;

struct Table {
  Entries entries{};
  /// As structure_of() gives it; None in folders that Python wrote.
  Value structure{};
};

constexpr const char* kTableName = ".metadata";

/// The file `.metadata`. Throws CheckpointError for what is no table, or one whose pieces do not make up its
/// tensors.
Table read_table(const std::filesystem::path& file);
Table parse_table(std::string_view text);
/// What Python's pickle makes a `Metadata` of; behind that, where Python does not look, the structure and a
/// checksum.
std::string write_table(const Table& table);
/// Whole under its name or not at all. Throws CheckpointError.
void write_table_file(const Table& table, const std::filesystem::path& folder, bool sync);

}  // namespace lockstep::distributed_checkpoint
