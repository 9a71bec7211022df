// SPDX-License-Identifier: BSD-3-Clause
#include "data/folder_listing.h"
#include "data/index_file.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kFolderMagic = "lockstep folder index 1\n";

void check_numbers(const FolderListing& listing) {
  if (listing.name_ends.size() != listing.folder_ids.size()) throw DamagedIndex();
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < listing.size(); ++i) {
    if (listing.name_ends[i] < begin || listing.name_ends[i] > listing.names.size()) throw DamagedIndex();
    if (listing.folder_ids[i] >= listing.folders.size()) throw DamagedIndex();
    begin = listing.name_ends[i];
  }
}

}  // namespace

std::optional<FolderIndex> read_folder_index(const std::filesystem::path& file) {
  auto index = read_index<FolderIndex>(file, kFolderMagic,
                                       [](const FolderIndex& found) { check_numbers(found.listing); });
  if (!index) return std::nullopt;
  auto& classes = index->listing.classes;
  for (const auto& name : classes.classes) {
    classes.class_to_idx.emplace(name, static_cast<std::int64_t>(classes.class_to_idx.size()));
  }
  return index;
}

void write_folder_index(const FolderIndex& index, const std::filesystem::path& file) {
  write_index(index, file, kFolderMagic, "DatasetFolder");
}

}  // namespace lockstep::data
