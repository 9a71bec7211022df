// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// An IDX file whose contents are known beforehand.
struct KnownFile {
  std::string name;    ///< without .gz
  std::string sha256;  ///< of the plain file, lower-case hexadecimal
};

/// A published dataset: its files, where they lie and where they come from.
struct KnownDataset {
  std::string name;                  ///< for messages
  std::string subfolder;             ///< below the user's root, where a download puts the files
  std::vector<KnownFile> files;      ///< all that a download brings
  std::vector<std::string> sources;  ///< as MNISTOptions::sources
};

/// Reads `folder`/name, or `folder`/name.gz where only that is there or fit for use. Throws DataError saying
/// what is wrong with the file; one of which the header, the size or the hash is wrong is never returned.
at::Tensor read_known_file(const std::filesystem::path& folder, const KnownFile& file);

struct LoadOptions {
  bool download = false;
  std::chrono::seconds timeout{600};                 ///< for a download, and waiting for another's
  std::chrono::milliseconds connect_timeout{5'000};  ///< for each connection to a source
};

/// Reads some of a dataset's files, found in `root` or its subfolder, after a download where that is asked
/// for and needed. Throws DataError.
std::vector<at::Tensor> load_known_files(const KnownDataset& dataset, const std::filesystem::path& root,
                                         const std::vector<KnownFile>& wanted, const LoadOptions& options);

}  // namespace lockstep::data
