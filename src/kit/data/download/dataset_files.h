// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/timeout.h>

#include "data/bytes.h"

namespace lockstep::data {

// The contents of a plain or gzip-compressed file, decompressed, as a uint8 tensor of shape [bytes]. Throws
// DataError naming the file.
at::Tensor read_file_bytes(const std::filesystem::path& file);

// Parses the contents of an IDX file. A tensor of one-byte values shares the memory of `bytes`. `name` is for
// messages. Throws DataError.
at::Tensor parse_idx(const at::Tensor& bytes, const std::string& name);

// A file with the checksum that is known of it, in lower-case hexadecimal: the other one is empty.
struct DatasetFile {
  std::string name;    // without .gz, unless it is an archive
  std::string sha256;  // of the decompressed file
  std::string md5{};   // of the file as published, compressed
  bool is_archive = false;
};

// A published dataset of IDX files, or of archives, which stay as they are.
struct RemoteDataset {
  std::string name;       // for messages
  std::string subfolder;  // of the user's root; downloads go there; empty for the root itself
  std::vector<DatasetFile> files;
  std::vector<std::string> sources;  // see MNISTOptions::sources
};

struct DownloadOptions {
  bool download = false;
  Timeout timeout = std::chrono::minutes(10);        // includes the wait for another process's download
  std::chrono::milliseconds connect_timeout{5'000};  // for each connection
};

// In lower-case hexadecimal.
std::string sha256_hex(ByteSpan bytes);
std::string md5_hex(ByteSpan bytes);

// Throws DataError beginning with `what` when the checksum of `file` is another one. `published` are the
// bytes of the file as it is, `bytes` those after decompression.
void check_checksum(std::string_view what, const at::Tensor& published, const at::Tensor& bytes,
                    const DatasetFile& file);

// What to call the files of the dataset in "put ... into the folder".
std::string_view files_to_put(const RemoteDataset& dataset);

// Reads `folder`/name, or `folder`/name.gz when the plain file is missing or damaged. Returns the values of
// an IDX file and the bytes of an archive. Throws DataError when the header, the size or the checksum is
// wrong.
at::Tensor read_dataset_file(const std::filesystem::path& folder, const DatasetFile& file);

// Reads `files` of the dataset from `root` or its subfolder; with `download`, fetches missing and damaged
// files first. Throws DataError.
std::vector<at::Tensor> load_dataset_files(const RemoteDataset& dataset, const std::filesystem::path& root,
                                           const std::vector<DatasetFile>& files,
                                           const DownloadOptions& options);

}  // namespace lockstep::data
