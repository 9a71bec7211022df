// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/data/vision.h>

namespace lockstep::data {

// The files of a DatasetFolder. A million names lie in one string.
class FolderListing {
 public:
  struct Folder {
    std::string path;  // relative to the root
    std::int64_t target;
    static void for_each_part(auto& self, auto visit) {
      visit(self.path);
      visit(self.target);
    }
  };

  std::filesystem::path root;
  FolderClasses classes;
  std::vector<Folder> folders;
  std::string names;                      // of all files, in the order of the samples
  std::vector<std::uint64_t> name_ends;   // per sample: the end of its name in `names`
  std::vector<std::uint32_t> folder_ids;  // per sample

  std::size_t size() const { return name_ends.size(); }
  void add(std::size_t folder, std::string_view name);
  std::string_view name(std::size_t sample) const;
  std::filesystem::path path(std::size_t sample) const;
  std::int64_t target(std::size_t sample) const { return folders[folder_ids[sample]].target; }
  at::Tensor targets() const;  // int64 [size()]
};

// Lists the files under `root`, from the index cache where it is valid.
FolderListing list_folder(const std::filesystem::path& root, const DatasetFolderOptions& options);

// A folder and when its entries last changed.
struct FolderTime {
  std::string path;  // relative to the root; empty for the root
  std::int64_t nanoseconds;
  bool operator==(const FolderTime&) const = default;
  static void for_each_part(auto& self, auto visit) {
    visit(self.path);
    visit(self.nanoseconds);
  }
};

// An index cache: what was listed, by which rules, and the folders that were read.
struct FolderIndex {
  std::vector<std::string> extensions;
  bool allow_empty = false;
  std::vector<FolderTime> times;
  FolderListing listing;
  static void for_each_part(auto& self, auto visit) {
    visit(self.extensions);
    visit(self.allow_empty);
    visit(self.times);
    visit(self.listing.classes.classes);
    visit(self.listing.folders);
    visit(self.listing.names);
    visit(self.listing.name_ends);
    visit(self.listing.folder_ids);
  }
};

// nullopt when the file is missing, damaged or of another version.
std::optional<FolderIndex> read_folder_index(const std::filesystem::path& file);
// Warns when the file cannot be written.
void write_folder_index(const FolderIndex& index, const std::filesystem::path& file);

}  // namespace lockstep::data
