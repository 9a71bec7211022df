// SPDX-License-Identifier: BSD-3-Clause
#include "data/folder_listing.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/data/images.h>
#include <lockstep/data/subset.h>

#include "base/atomic_file.h"
#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/index_file.h"
#include "data/python_functions.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 9> kImageExtensions = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                         ".pgm", ".tif",  ".tiff", ".webp"};

struct FolderStatus {
  dev_t device;
  ino_t inode;
  std::int64_t changed;  // nanoseconds

  bool is_same_folder(const FolderStatus& other) const {
    return device == other.device && inode == other.inode;
  }
};

std::optional<FolderStatus> status_of(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return std::nullopt;
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return FolderStatus{.device = status.st_dev,
                      .inode = status.st_ino,
                      .changed = status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

struct Entries {
  std::vector<std::string> files;
  std::vector<std::string> folders;
};

Entries entries_of(const fs::path& folder) {
  Entries entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code broken_link;
    auto& kind = entry->is_directory(broken_link) ? entries.folders : entries.files;
    kind.push_back(entry->path().filename().string());
  }
  if (error) throw_error<DataError>("{}: the folder cannot be read: {}", folder.string(), error.message());
  std::ranges::sort(entries.files, before_in_python);
  std::ranges::sort(entries.folders, before_in_python);
  return entries;
}

// The classes in the order in which torchvision lists their samples: by name, whatever their targets are.
std::vector<std::string> sorted_names(const FolderClasses& classes) {
  std::vector<std::string> names;
  for (const auto& [name, target] : classes.class_to_idx) names.push_back(name);
  std::ranges::sort(names, before_in_python);
  return names;
}

bool ends_with_any(std::string name, const std::vector<std::string>& extensions) {
  std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return std::ranges::any_of(extensions, [&](const auto& extension) { return name.ends_with(extension); });
}

// The files of a class, folder by folder.
class ClassWalk {
 public:
  explicit ClassWalk(const fs::path& root) : root_(root) {}

  struct Found {
    std::string folder;  // relative to the root
    std::vector<std::string> files;
  };

  // As torchvision sorts them: by the folder's path as text, then by name.
  std::vector<Found> walk(const std::string& class_folder) {
    found_.clear();
    visit(class_folder);
    std::ranges::sort(found_, before_in_python, &Found::folder);
    return std::move(found_);
  }
  std::vector<FolderTime> times() && { return std::move(times_); }

 private:
  void visit(const std::string& folder) {
    const auto path = root_ / folder;
    const auto status = status_of(path);
    if (!status) {
      throw_error<DataError>("{}: the folder cannot be read: {}", path.string(),
                             std::error_code(errno, std::generic_category()).message());
    }
    if (std::ranges::any_of(parents_, [&](const auto& parent) { return parent.is_same_folder(*status); })) {
      throw_error<DataError>("{}: the link leads back to a folder that contains it; remove the link",
                             path.string());
    }
    times_.push_back({.path = folder, .nanoseconds = status->changed});
    auto entries = entries_of(path);
    found_.push_back({.folder = folder, .files = std::move(entries.files)});
    parents_.push_back(*status);
    for (const auto& name : entries.folders) visit(folder + "/" + name);
    parents_.pop_back();
  }

  fs::path root_;
  std::vector<FolderStatus> parents_{};
  std::vector<Found> found_{};
  std::vector<FolderTime> times_{};
};

std::vector<std::string> extensions_of(const DatasetFolderOptions& options) {
  if (options.extensions) return *options.extensions;
  return {kImageExtensions.begin(), kImageExtensions.end()};
}

void check_options(const DatasetFolderOptions& options) {
  if (options.is_valid_file && options.extensions) {
    throw ArgumentError("DatasetFolder: is_valid_file excludes extensions; it decides for each file");
  }
  if (!options.index_cache.empty() && (options.is_valid_file || options.find_classes)) {
    throw ArgumentError(
        "DatasetFolder: index_cache excludes is_valid_file and find_classes, whose results it cannot check");
  }
}

void check_no_class_is_empty(const FolderListing& listing, const std::vector<std::string>& empty,
                             const std::vector<std::string>& extensions, bool has_predicate) {
  if (empty.empty()) return;
  throw_error<DataError>("{}: no valid file for the class{} {}{}; allow_empty accepts classes without files",
                         listing.root.string(), empty.size() == 1 ? "" : "es", fmt::join(empty, ", "),
                         has_predicate
                             ? std::string()
                             : fmt::format(" (supported extensions: {})", fmt::join(extensions, ", ")));
}

FolderTime time_of_root(const fs::path& root) {
  const auto status = status_of(root);
  if (!status) {
    throw_error<DataError>("{}: the folder cannot be read: {}", root.string(),
                           std::error_code(errno, std::generic_category()).message());
  }
  return {.path = "", .nanoseconds = status->changed};
}

FolderIndex list_anew(const fs::path& root, const DatasetFolderOptions& options) {
  FolderIndex index;
  index.extensions = extensions_of(options);
  index.allow_empty = options.allow_empty;
  index.times.push_back(time_of_root(root));
  auto& listing = index.listing;
  listing.root = root;
  listing.classes = options.find_classes ? options.find_classes(root) : find_classes(root);
  ClassWalk walk(root);
  std::vector<std::string> empty;
  for (const auto& name : sorted_names(listing.classes)) {
    const auto target = listing.classes.class_to_idx.at(name);
    const auto before = listing.size();
    if (options.find_classes && !fs::is_directory(root / name)) {
      empty.push_back(name);  // as in torchvision
      continue;
    }
    for (const auto& found : walk.walk(name)) {
      listing.folders.push_back({.path = found.folder, .target = target});
      for (const auto& file : found.files) {
        const bool valid = options.is_valid_file ? options.is_valid_file(root / found.folder / file)
                                                 : ends_with_any(file, index.extensions);
        if (valid) listing.add(listing.folders.size() - 1, file);
      }
    }
    if (listing.size() == before) empty.push_back(name);
  }
  std::ranges::move(std::move(walk).times(), std::back_inserter(index.times));
  if (!options.allow_empty) {
    check_no_class_is_empty(listing, empty, index.extensions, options.is_valid_file != nullptr);
  }
  return index;
}

bool is_current(const FolderIndex& index, const fs::path& root, const DatasetFolderOptions& options) {
  if (index.extensions != extensions_of(options) || index.allow_empty != options.allow_empty) return false;
  return std::ranges::all_of(index.times, [&](const FolderTime& time) {
    const auto status = status_of(root / time.path);
    return status && status->changed == time.nanoseconds;
  });
}

}  // namespace

void FolderListing::add(std::size_t folder, std::string_view name) {
  names += name;
  name_ends.push_back(names.size());
  folder_ids.push_back(static_cast<std::uint32_t>(folder));
}

std::string_view FolderListing::name(std::size_t sample) const {
  const auto begin = sample == 0 ? 0 : name_ends[sample - 1];
  return std::string_view(names).substr(begin, name_ends[sample] - begin);
}

fs::path FolderListing::path(std::size_t sample) const {
  return root / folders[folder_ids[sample]].path / name(sample);
}

at::Tensor FolderListing::targets() const {
  auto targets = at::empty({static_cast<std::int64_t>(size())}, at::kLong);
  auto* out = targets.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < size(); ++i) out[i] = target(i);
  return targets;
}

FolderClasses find_classes(const fs::path& root) {
  const ErrorFile about(root);
  FolderClasses found{.classes = entries_of(root).folders, .class_to_idx = {}};
  if (found.classes.empty()) {
    throw_error<DataError>("{}: no class folder; a subfolder for each class is expected", root.string());
  }
  for (const auto& name : found.classes) {
    found.class_to_idx.emplace(name, static_cast<std::int64_t>(found.class_to_idx.size()));
  }
  return found;
}

FolderListing list_folder(const fs::path& root, const DatasetFolderOptions& options) {
  const ErrorFile about(root);
  check_options(options);
  if (options.index_cache.empty()) return list_anew(root, options).listing;
  if (auto index = read_folder_index(options.index_cache); index && is_current(*index, root, options)) {
    index->listing.root = root;
    return std::move(index->listing);
  }
  auto index = list_anew(root, options);
  const auto newest = std::ranges::max(index.times, {}, &FolderTime::nanoseconds).nanoseconds;
  if (!may_change_unnoticed(newest)) write_folder_index(index, options.index_cache);
  return std::move(index.listing);
}

namespace {

constexpr std::string_view kFolderMagic = "lockstep folder index 2\n";

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
  const ErrorFile about(file);
  write_index(index, file, kFolderMagic, "DatasetFolder");
}

namespace {

std::string ascii_json(const std::string& name, const std::filesystem::path& file) {
  try {
    return nlohmann::json(name).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true);
  } catch (const nlohmann::json::exception&) {
    throw_error<ArgumentError>("write_class_indices: {}: the class name \"{}\" is not valid UTF-8",
                               file.string(), name);
  }
}

}  // namespace

void write_class_indices(const std::filesystem::path& file, const std::vector<std::string>& classes,
                         std::source_location where) {
  const CallerPlace place(where);
  std::string text = "{";
  for (std::size_t i = 0; i < classes.size(); ++i) {
    text += fmt::format("{}\n    \"{}\": {}", i == 0 ? "" : ",", i, ascii_json(classes[i], file));
  }
  text += classes.empty() ? "}" : "\n}";
  try {
    AtomicFile out(file);
    out.write(std::as_bytes(std::span(text)));
    out.commit();
  } catch (const std::system_error& error) {
    throw_error<DataError>("{}: the class indices cannot be written: {}", file.string(),
                           errno_text(error.code().value()));
  }
}

std::vector<std::string> read_class_indices(const std::filesystem::path& file, std::source_location where) {
  const ErrorFile about(file);
  const CallerPlace place(where);
  const auto bytes = read_file(file);
  const auto text = as_bytes(bytes);
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw_error<DataError>("{}: is not a JSON object of class names by index, such as {{\"0\": \"daisy\"}}",
                           file.string());
  }
  std::vector<std::string> classes;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto entry = json.find(std::to_string(i));
    if (entry == json.end() || !entry->is_string()) {
      throw_error<DataError>(
          "{}: has {} entries, but no class name for \"{}\"; the indices should be 0 .. {}", file.string(),
          json.size(), i, json.size() - 1);
    }
    classes.push_back(entry->get<std::string>());
  }
  return classes;
}

}  // namespace lockstep::data
