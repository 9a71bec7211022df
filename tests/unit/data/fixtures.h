// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/download/dataset_files.h"
#include "support/temp_folder.h"

namespace lockstep::data::testing {

using lockstep::testing::TempFolder;

/// Sets an environment variable and puts the old value back.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_;
  std::string old_;
};

void write_file(const std::filesystem::path& file, const std::string& bytes);
void write_gzip(const std::filesystem::path& file, const std::string& bytes);
std::string bytes_of_file(const std::filesystem::path& file);

/// The bytes of an IDX file of uint8 values.
std::string idx_bytes(const std::vector<std::uint32_t>& dims, const std::string& values);

/// A tar archive of one file after another.
std::string tar_bytes(const std::vector<std::pair<std::string, std::string>>& files);

/// A dataset of two tiny files, "images" [2, 2, 3] and "labels" [2], for which no source is set.
RemoteDataset tiny_dataset();
std::string tiny_images();
std::string tiny_labels();

/// Makes a folder that serves as a mirror of tiny_dataset(): its .gz files. Returns its file:// URL.
std::string make_mirror(const std::filesystem::path& folder);

}  // namespace lockstep::data::testing
