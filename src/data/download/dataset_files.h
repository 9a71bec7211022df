// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/bytes.h"

namespace lockstep::data {

// The contents of a plain or gzip-compressed file, decompressed, as a uint8 tensor of shape [bytes]. Throws
// DataError naming the file.
at::Tensor read_file_bytes(const std::filesystem::path& file);

// Parses the contents of an IDX file. A tensor of one-byte values shares the memory of `bytes`. `name` is for
// messages. Throws DataError.
at::Tensor parse_idx(const at::Tensor& bytes, const std::string& name);

struct DatasetFile {
  std::string name;    // without .gz
  std::string sha256;  // of the decompressed file, lower-case hexadecimal
};

// A published dataset of IDX files.
struct RemoteDataset {
  std::string name;       // for messages
  std::string subfolder;  // of the user's root; downloads go there
  std::vector<DatasetFile> files;
  std::vector<std::string> sources;  // see MNISTOptions::sources
};

struct DownloadOptions {
  bool download = false;
  std::chrono::seconds timeout{600};                 // includes the wait for another process's download
  std::chrono::milliseconds connect_timeout{5'000};  // for each connection
};

// SHA-256 in lower-case hexadecimal.
std::string sha256_hex(ByteSpan bytes);

// Reads `folder`/name, or `folder`/name.gz when the plain file is missing or damaged. Throws DataError when
// the header, the size or the hash is wrong.
at::Tensor read_dataset_file(const std::filesystem::path& folder, const DatasetFile& file);

// Reads `files` of the dataset from `root` or its subfolder; with `download`, fetches missing and damaged
// files first. Throws DataError.
std::vector<at::Tensor> load_dataset_files(const RemoteDataset& dataset, const std::filesystem::path& root,
                                           const std::vector<DatasetFile>& files,
                                           const DownloadOptions& options);

}  // namespace lockstep::data
