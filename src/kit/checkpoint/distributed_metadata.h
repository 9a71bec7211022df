// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
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

// The number of elements of a tensor of these sizes. Throws CheckpointError on overflow.
std::int64_t element_count(const Sizes& sizes);

// Whether the pieces, which must lie within the whole, cover each element exactly once. Takes time
// proportional to their number. Throws CheckpointError for tensors that are split along more than 12
// dimensions, or into 2^24 / 2^dimensions pieces or more.
bool covers(const Sizes& whole, const std::vector<Piece>& pieces);

// Describes why covers() is false: two pieces that overlap, or the number of missing elements.
std::string coverage_problem(const Sizes& whole, const std::vector<Piece>& pieces);

// Whether a part and a piece have an element in common.
bool overlap(const Sizes& offsets, const Sizes& sizes, const Piece& piece);

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

// The contents of `.metadata`: the pickle that Python reads, followed by the structure, which Python ignores.
struct MetadataParts {
  std::string_view pickle;
  std::string_view structure;
};
// An attribute of Python's Metadata, which Python ignores: the file has a trailer.
constexpr const char* kHasTrailer = "lockstep_trailer";
// Both parts, and a trailer with the length of the structure and the checksum of everything before it.
std::string with_trailer(const MetadataParts& parts);
// The parts of a file. Metadata that Python wrote are a pickle only. Throws CheckpointError when the checksum
// differs.
MetadataParts without_trailer(std::string_view text);

// Reads `.metadata`. Throws CheckpointError for invalid metadata, and if pieces do not cover their tensors.
Metadata read_metadata(const std::filesystem::path& file);
Metadata parse_metadata(std::string_view text);
// A pickle of Python's `Metadata`, followed by the structure and a checksum, which Python ignores.
std::string write_metadata(const Metadata& metadata);
// Replaces `.metadata` atomically. Throws CheckpointError.
void write_metadata_file(const Metadata& metadata, const std::filesystem::path& folder, bool sync);

// Runs `read`, which reads a checkpoint's folder, and again if it throws CheckpointError because another save
// replaced the metadata meanwhile and removed the old files.
void read_again_if_replaced(const std::filesystem::path& folder, const std::function<void()>& read);

}  // namespace lockstep::distributed_checkpoint
