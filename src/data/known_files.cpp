// SPDX-License-Identifier: BSD-3-Clause
#include "data/known_files.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "data/download.h"
#include "data/file_bytes.h"
#include "data/idx_format.h"
#include "data/sha256.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

bool file_exists(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

fs::path compressed(fs::path file) { return file += ".gz"; }

at::Tensor read_checked(const fs::path& path, const KnownFile& file) {
  const auto bytes = read_file_bytes(path);
  // Before the hash, because this says better what is wrong.
  auto values = parse_idx(bytes, path.string());
  if (const auto hash = sha256_hex(as_bytes(bytes)); hash != file.sha256) {
    throw DataError(fmt::format("{}: is damaged or another file: its SHA-256 is {}, not {}", path.string(),
                                hash, file.sha256));
  }
  return values;
}

// The user's folder itself when it holds any of the files, else where a download would put them.
fs::path files_folder(const KnownDataset& dataset, const fs::path& root) {
  const bool direct = std::ranges::any_of(dataset.files, [&root](const KnownFile& file) {
    return file_exists(root / file.name) || file_exists(compressed(root / file.name));
  });
  return direct ? root : root / dataset.subfolder;
}

struct Attempt {
  std::vector<at::Tensor> values{};
  std::vector<std::string> problems{};
};

Attempt read_all(const fs::path& folder, const std::vector<KnownFile>& files) {
  Attempt attempt;
  for (const auto& file : files) {
    try {
      attempt.values.push_back(read_known_file(folder, file));
    } catch (const DataError& error) {
      attempt.problems.emplace_back(error.what());
    }
  }
  return attempt;
}

[[noreturn]] void refuse(const KnownDataset& dataset, const fs::path& root, const Attempt& attempt) {
  const auto what = file_exists(root)
                        ? fmt::format("cannot be used:\n  {}", fmt::join(attempt.problems, "\n  "))
                        : fmt::format("is not there: no such folder: {}", root.string());
  std::vector<std::string> names;
  for (const auto& file : dataset.files) names.push_back(file.name);
  throw DataError(fmt::format(
      "{0} {1}\nSet download = true to fetch it, or put these files (plain or .gz) into {2} or {2}/{3}: {4}",
      dataset.name, what, root.string(), dataset.subfolder, fmt::join(names, ", ")));
}

}  // namespace

at::Tensor read_known_file(const fs::path& folder, const KnownFile& file) {
  const fs::path plain = folder / file.name;
  const fs::path gzip = compressed(plain);
  if (!file_exists(gzip)) return read_checked(plain, file);
  if (!file_exists(plain)) return read_checked(gzip, file);
  try {
    return read_checked(plain, file);
  } catch (const DataError& error) {
    log(LogLevel::warning, fmt::format("{}; trying {}", error.what(), gzip.string()));
    return read_checked(gzip, file);
  }
}

std::vector<at::Tensor> load_known_files(const KnownDataset& dataset, const fs::path& root,
                                         const std::vector<KnownFile>& wanted, const LoadOptions& options) {
  const fs::path folder = files_folder(dataset, root);
  auto attempt = read_all(folder, wanted);
  if (attempt.problems.empty()) return std::move(attempt.values);
  if (!options.download) refuse(dataset, root, attempt);
  download_known_files(dataset, folder, options);
  attempt = read_all(folder, wanted);
  if (!attempt.problems.empty()) refuse(dataset, root, attempt);
  return std::move(attempt.values);
}

}  // namespace lockstep::data
