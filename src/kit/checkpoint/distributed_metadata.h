// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/serialize/value.h>

namespace lockstep::distributed_checkpoint {

using Sizes = std::vector<std::int64_t>;

// The location of a piece of a tensor, or of an object, in a file.
struct Place {
  std::string file{};
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct Piece {
  Sizes offsets{};
  Sizes sizes{};
  Sizes strides{};  // of the tensor that was saved; empty: unknown
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

// By name, in the order of the metadata.
using Entries = std::vector<std::pair<std::string, Entry>>;

struct Metadata {
  Entries entries{};
  // The result of structure_of(); None in folders that Python wrote.
  Value structure{};
};

constexpr const char* kMetadataName = ".metadata";

// The name of the data file that a rank writes in the save that has `token`.
std::string data_file(std::size_t rank, const std::string& token);
// The data files in a folder: of any save, Python's, and those of killed writers.
std::vector<std::string> data_files(const std::filesystem::path& folder);

// Reads `.metadata`. Throws CheckpointError for invalid metadata, and if pieces do not cover their tensors, and
// CheckpointReadError for a later format.
Metadata read_metadata(const std::filesystem::path& file);
// `name` appears in the latter.
Metadata parse_metadata(std::string_view text, const std::string& name = "the metadata");
// Runs `read`, which reads a checkpoint's folder, and again if it throws CheckpointError because another save
// replaced the metadata meanwhile and removed the old files.
void read_again_if_replaced(const std::filesystem::path& folder, const std::function<void()>& read);

}  // namespace lockstep::distributed_checkpoint
