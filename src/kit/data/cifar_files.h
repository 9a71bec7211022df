// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

#include "data/download/dataset_files.h"

namespace lockstep::data {

// One of the two forms in which CIFAR is published.
struct CifarForm {
  DatasetFile archive;
  std::string folder;              // in the archive, and of the extracted files
  std::vector<DatasetFile> train;  // in torchvision's order
  std::vector<DatasetFile> test;
};

struct CifarFiles {
  std::string name;     // for messages
  std::string source;   // the URL of a folder with the Python archive
  CifarForm python;     // pickles
  CifarForm binary;     // records: labels, then the image
  std::string labels;   // the key of the labels in a pickle
  int label_bytes = 1;  // of a record; the last one is the label
  std::int64_t classes = 0;
};

CifarFiles cifar10_files();
CifarFiles cifar100_files();

// Images uint8 [n, 3, 32, 32] and labels int64 [n]. Throws DataError.
Batch load_cifar(const CifarFiles& files, const std::filesystem::path& root, bool train,
                 const std::vector<std::string>& sources, const DownloadOptions& options);

}  // namespace lockstep::data
