// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/dataset_files.h"

#include <algorithm>
#include <array>
#include <openssl/evp.h>
#include <utility>

#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/download/download.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

bool file_exists(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

fs::path gzip_path(fs::path file) { return file += ".gz"; }

std::string digest_hex(ByteSpan bytes, const EVP_MD* algorithm, std::string_view name) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (::EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, algorithm, nullptr) != 1) {
    throw_error<DataError>("{} could not be computed: OpenSSL on this machine does not provide it", name);
  }
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + length, ""));
}

bool is_gzip(ByteSpan bytes) { return bytes.size() > 1 && bytes[0] == 0x1f && bytes[1] == 0x8b; }

std::string damaged(const fs::path& path) {
  return fmt::format("{}: is damaged or a different file", path.string());
}

at::Tensor read_checked(const fs::path& path, const DatasetFile& file) {
  const ErrorFile about(path);
  const auto bytes = read_file_bytes(path);
  // Before the checksum, because its messages are more specific.
  auto values = parse_idx(bytes, path.string());
  const auto published = map_file(path);
  // The checksum of the decompressed file may be unknown.
  if (!file.sha256.empty() || is_gzip(as_bytes(published))) {
    check_checksum(damaged(path), published, bytes, file);
  }
  return values;
}

at::Tensor read_archive(const fs::path& path, const DatasetFile& file) {
  const ErrorFile about(path);
  auto bytes = map_file(path);
  check_checksum(damaged(path), bytes, bytes, file);
  return bytes;
}

// `root` when it contains any of the files, else the subfolder.
fs::path folder_of(const RemoteDataset& dataset, const fs::path& root) {
  const bool direct = std::ranges::any_of(dataset.files, [&root](const DatasetFile& file) {
    return file_exists(root / file.name) || file_exists(gzip_path(root / file.name));
  });
  return direct ? root : root / dataset.subfolder;
}

struct ReadResult {
  std::vector<at::Tensor> values{};
  std::vector<std::string> problems{};
};

ReadResult read_all(const fs::path& folder, const std::vector<DatasetFile>& files) {
  ReadResult result;
  for (const auto& file : files) {
    try {
      const WithoutPlace place;  // refuse() names it
      result.values.push_back(read_dataset_file(folder, file));
    } catch (const DataError& error) {
      result.problems.emplace_back(error.what());
    }
  }
  return result;
}

[[noreturn]] void refuse(const RemoteDataset& dataset, const fs::path& root, const ReadResult& result) {
  const auto problem = file_exists(root)
                           ? fmt::format("cannot be read:\n  {}", fmt::join(result.problems, "\n  "))
                           : fmt::format("was not found: no such folder: {}", root.string());
  std::vector<std::string> names;
  for (const auto& file : dataset.files) names.push_back(file.name);
  const auto folders = dataset.subfolder.empty()
                           ? root.string()
                           : fmt::format("{} or {}", root.string(), (root / dataset.subfolder).string());
  throw_error<DataError>(ErrorDetails{.file = root},
                         "{} {}\nSet download = true to fetch it, or put {} into {}: {}", dataset.name,
                         problem, files_to_put(dataset), folders, fmt::join(names, ", "));
}

}  // namespace

std::string sha256_hex(ByteSpan bytes) { return digest_hex(bytes, ::EVP_sha256(), "SHA-256"); }
std::string md5_hex(ByteSpan bytes) { return digest_hex(bytes, ::EVP_md5(), "MD5"); }

void check_checksum(std::string_view what, const at::Tensor& published, const at::Tensor& bytes,
                    const DatasetFile& file) {
  const bool use_sha256 = !file.sha256.empty();
  const auto found = use_sha256 ? sha256_hex(as_bytes(bytes)) : md5_hex(as_bytes(published));
  const auto& expected = use_sha256 ? file.sha256 : file.md5;
  if (found == expected) return;
  throw_error<DataError>("{}: its {} is {}, expected {}", what, use_sha256 ? "SHA-256" : "MD5", found,
                         expected);
}

std::string_view files_to_put(const RemoteDataset& dataset) {
  return dataset.files.front().is_archive ? "this archive" : "these files (plain or .gz)";
}

at::Tensor read_dataset_file(const fs::path& folder, const DatasetFile& file) {
  const fs::path plain = folder / file.name;
  if (file.is_archive) return read_archive(plain, file);
  const fs::path gzip = gzip_path(plain);
  if (!file_exists(gzip)) return read_checked(plain, file);
  if (!file_exists(plain)) return read_checked(gzip, file);
  try {
    const WithoutPlace place;
    return read_checked(plain, file);
  } catch (const DataError& error) {
    log(LogLevel::warning, fmt::format("{}; trying {}", error.what(), gzip.string()));
    return read_checked(gzip, file);
  }
}

std::vector<at::Tensor> load_dataset_files(const RemoteDataset& dataset, const fs::path& root,
                                           const std::vector<DatasetFile>& files,
                                           const DownloadOptions& options) {
  const fs::path folder = folder_of(dataset, root);
  auto result = read_all(folder, files);
  if (result.problems.empty()) return std::move(result.values);
  if (!options.download) refuse(dataset, root, result);
  download_dataset(dataset, folder, options);
  result = read_all(folder, files);
  if (!result.problems.empty()) refuse(dataset, root, result);
  return std::move(result.values);
}

}  // namespace lockstep::data
