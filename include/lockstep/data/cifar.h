// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// Options of CIFAR10 and CIFAR100.
struct CIFAROptions {
  bool train = true;                        ///< the 50,000 training images, or the 10,000 test images
  bool download = false;                    ///< download the archive if there are no files, or damaged ones
  std::optional<Normalize> normalize = {};  ///< as in ImageDatasetOptions
  /// As in ImageDatasetOptions: of uint8 [3, height, width].
  std::optional<transforms::Transform> transform = {};
  TargetTransform target_transform = {};
  /// URLs of folders with the Python archive, tried in this order. Default: torchvision's.
  std::vector<std::string> sources = {};
  /// Limit for the download, including the wait for another process that is downloading.
  std::chrono::seconds timeout{600};
};

/// 32 x 32 colour images of 10 classes: float32 [batch, 3, 32, 32], labels int64 [batch], in torchvision's
/// order. torchvision: datasets.CIFAR10 with ToTensor and, optionally, Normalize.
///
/// `root` has one of: the folder cifar-10-batches-py, the folder cifar-10-batches-bin, the archive
/// cifar-10-python.tar.gz, where a download goes, or cifar-10-binary.tar.gz. They are tried in this order.
/// Archives are not extracted to disk. Verifies the published MD5 of archives and of the Python files.
class CIFAR10 : public ImageDataset {
 public:
  /// Throws DataError naming the folder or file, the problem and the remedy.
  explicit CIFAR10(const std::filesystem::path& root, const CIFAROptions& options = {});
  /// The name of each label. torchvision: `classes`.
  static const std::vector<std::string>& classes();
  /// The label of each name. torchvision: `class_to_idx`.
  static std::map<std::string, std::int64_t> class_to_idx();
};

/// The same with 100 (fine) classes, from cifar-100-python, cifar-100-binary, or an archive of one of them.
/// torchvision: datasets.CIFAR100.
class CIFAR100 : public ImageDataset {
 public:
  /// Throws as CIFAR10 does.
  explicit CIFAR100(const std::filesystem::path& root, const CIFAROptions& options = {});
  static const std::vector<std::string>& classes();
  static std::map<std::string, std::int64_t> class_to_idx();
};

}  // namespace lockstep::data
