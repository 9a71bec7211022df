// SPDX-License-Identifier: BSD-3-Clause
#include "data/cifar_files.h"

#include <functional>
#include <optional>
#include <string_view>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/tar.h"
#include "serialize/pickle.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using pickle::Kind;
using pickle::Node;
using pickle::Pickle;
using pickle::Ref;

constexpr std::int64_t kImageBytes = 3 * 32 * 32;

at::Tensor as_images(const at::Tensor& bytes) { return bytes.reshape({-1, 3, 32, 32}); }

bool is_in_cifar(std::string_view module, std::string_view name) {
  if (module == "numpy") return name == "ndarray" || name == "dtype";
  return name == "_reconstruct" && (module == "numpy.core.multiarray" || module == "numpy._core.multiarray");
}

// A pickled dictionary with a NumPy array of images and a list of labels.
class CifarPickle {
 public:
  CifarPickle(const at::Tensor& bytes, const std::string& name)
      : bytes_(bytes),
        name_(name),
        pickle_(as_data_errors([&] { return pickle::read_pickle(as_text(bytes), is_in_cifar); })) {}

  // uint8 [n, 3, 32, 32], which share the memory of the file.
  at::Tensor images() const {
    const auto& array = value_of("data", Kind::call);
    // numpy's: version, shape, dtype, whether in Fortran order, bytes.
    const auto& state = node(array.state, Kind::tuple);
    if (state.items.size() != 5) fail();
    const auto& shape = node(state.items[1], Kind::tuple);
    const auto& dtype = node(node(state.items[2], Kind::call).args, Kind::tuple);
    if (shape.items.size() != 2 || dtype.items.empty() || pickle_[dtype.items[0]].text != "u1" ||
        node(state.items[3], Kind::boolean).flag) {
      fail();
    }
    const auto text = string_at(state.items[4]);
    const auto count = static_cast<std::int64_t>(text.size()) / kImageBytes;
    if (node(shape.items[0], Kind::integer).integer != count ||
        node(shape.items[1], Kind::integer).integer != kImageBytes ||
        count * kImageBytes != static_cast<std::int64_t>(text.size())) {
      fail();
    }
    const auto start =
        reinterpret_cast<const std::uint8_t*>(text.data()) - bytes_.const_data_ptr<std::uint8_t>();
    return as_images(bytes_.narrow(0, start, count * kImageBytes));
  }

  at::Tensor labels(std::string_view key) const {
    std::vector<std::int64_t> labels;
    for (const auto ref : value_of(key, Kind::list).items) labels.push_back(node(ref, Kind::integer).integer);
    return at::tensor(labels, at::kLong);
  }

 private:
  [[noreturn]] void fail() const { throw_error<DataError>("{}: is not a batch of CIFAR images", name_); }

  const Node& node(Ref ref, Kind kind) const {
    if (ref == pickle::kNoRef || pickle_[ref].kind != kind) fail();
    return pickle_[ref];
  }

  // Python 2 has one type for text and bytes.
  std::string_view string_at(Ref ref) const {
    const auto& found = pickle_[ref];
    if (found.kind != Kind::text && found.kind != Kind::bytes) fail();
    return found.text;
  }

  const Node& value_of(std::string_view key, Kind kind) const {
    const auto& items = node(pickle_.root, Kind::dict).items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto& found = pickle_[items[i]];
      if ((found.kind == Kind::text || found.kind == Kind::bytes) && found.text == key) {
        return node(items[i + 1], kind);
      }
    }
    fail();
  }

  const at::Tensor& bytes_;
  const std::string& name_;
  const Pickle pickle_;
};

Batch read_records(const at::Tensor& bytes, int label_bytes, const std::string& name) {
  const auto record = label_bytes + kImageBytes;
  if (bytes.numel() % record != 0) {
    throw_error<DataError>("{}: is cut short or not of CIFAR: its {} bytes are not records of {}", name,
                           bytes.numel(), record);
  }
  const auto records = bytes.view({-1, record});
  return {.data = as_images(records.narrow(1, label_bytes, kImageBytes)),
          .target = records.select(1, label_bytes - 1).to(at::kLong)};
}

// Returns the contents of a file of the published folder.
using ReadMember = std::function<at::Tensor(const std::string& name)>;

ReadMember members_of_folder(const fs::path& folder) {
  return [folder](const std::string& name) { return map_file(folder / name); };
}

ReadMember members_of_archive(const fs::path& archive, const std::string& folder) {
  return [members = read_tar(read_file_bytes(archive), archive.string()), archive,
          folder](const std::string& name) {
    const auto found = members.find(fmt::format("{}/{}", folder, name));
    if (found == members.end()) {
      throw_error<DataError>("{}: contains no {}/{}", archive.string(), folder, name);
    }
    return found->second;
  };
}

void check_labels_of(const Batch& batch, std::int64_t classes, const std::string& name) {
  if (batch.data.size(0) != batch.target.size(0) || batch.target.numel() == 0 ||
      batch.target.min().item<std::int64_t>() < 0 || batch.target.max().item<std::int64_t>() >= classes) {
    throw_error<DataError>("{}: should have a label from 0 to {} for each image", name, classes - 1);
  }
}

Batch read_split(const CifarFiles& files, const CifarForm& form, bool train, const fs::path& where,
                 const ReadMember& read) {
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;
  for (const auto& file : train ? form.train : form.test) {
    const auto bytes = read(file.name);
    const auto name = (where / file.name).string();
    if (!file.md5.empty()) check_checksum(name, bytes, bytes, file);
    Batch batch;
    if (&form == &files.python) {
      const CifarPickle contents(bytes, name);
      batch = {.data = contents.images(), .target = contents.labels(files.labels)};
    } else {
      batch = read_records(bytes, files.label_bytes, name);
    }
    check_labels_of(batch, files.classes, name);
    images.push_back(batch.data);
    labels.push_back(batch.target);
  }
  return {.data = at::cat(images), .target = at::cat(labels)};
}

Batch read_archive_of(const CifarFiles& files, const CifarForm& form, bool train, const fs::path& root) {
  const ErrorFile about(root);
  read_dataset_file(root, form.archive);  // verifies it
  const auto archive = root / form.archive.name;
  return read_split(files, form, train, archive, members_of_archive(archive, form.folder));
}

// What `read` gives; nothing when `path` does not exist or is damaged, of which this warns.
template <typename Read>
std::optional<Batch> try_to_read(const fs::path& path, Read read) {
  const ErrorFile about(path);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  try {
    return read();
  } catch (const DataError& error) {
    log(LogLevel::warning, fmt::format("{}; not used", error.what()));
    return std::nullopt;
  }
}

// An archive or a file in it.
DatasetFile file(const std::string& name, const std::string& md5 = "") {
  return {.name = name, .sha256 = {}, .md5 = md5, .is_archive = true};
}

}  // namespace

CifarFiles cifar10_files() {
  return {.name = "CIFAR10",
          .source = "https://www.cs.toronto.edu/~kriz/",
          .python = {.archive = file("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
                     .folder = "cifar-10-batches-py",
                     .train = {file("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                               file("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                               file("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                               file("data_batch_4", "634d18415352ddfa80567beed471001a"),
                               file("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb")},
                     .test = {file("test_batch", "40351d587109b95175f43aff81a1287e")}},
          .binary = {.archive = file("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
                     .folder = "cifar-10-batches-bin",
                     .train = {file("data_batch_1.bin"), file("data_batch_2.bin"), file("data_batch_3.bin"),
                               file("data_batch_4.bin"), file("data_batch_5.bin")},
                     .test = {file("test_batch.bin")}},
          .labels = "labels",
          .label_bytes = 1,
          .classes = 10};
}

CifarFiles cifar100_files() {
  return {.name = "CIFAR100",
          .source = "https://www.cs.toronto.edu/~kriz/",
          .python = {.archive = file("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
                     .folder = "cifar-100-python",
                     .train = {file("train", "16019d7e3df5f24257cddd939b257f8d")},
                     .test = {file("test", "f0ef6b0ae62326f3e7ffdfab6717acfc")}},
          .binary = {.archive = file("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
                     .folder = "cifar-100-binary",
                     .train = {file("train.bin")},
                     .test = {file("test.bin")}},
          .labels = "fine_labels",
          .label_bytes = 2,
          .classes = 100};
}

Batch load_cifar(const CifarFiles& files, const fs::path& root, bool train,
                 const std::vector<std::string>& sources, const DownloadOptions& options) {
  for (const auto* form : {&files.python, &files.binary}) {
    const auto folder = root / form->folder;
    const auto read = [&] { return read_split(files, *form, train, folder, members_of_folder(folder)); };
    if (auto batch = try_to_read(folder, read)) return *batch;
  }
  for (const auto* form : {&files.python, &files.binary}) {
    const auto read = [&] { return read_archive_of(files, *form, train, root); };
    if (auto batch = try_to_read(root / form->archive.name, read)) return *batch;
  }
  const RemoteDataset remote{.name = files.name,
                             .subfolder = "",
                             .files = {files.python.archive},
                             .sources = sources.empty() ? std::vector{files.source} : sources};
  load_dataset_files(remote, root, remote.files, options);
  return read_archive_of(files, files.python, train, root);
}

}  // namespace lockstep::data
