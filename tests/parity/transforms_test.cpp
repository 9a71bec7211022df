// SPDX-License-Identifier: BSD-3-Clause
// Transforms beside live torchvision: the same pixels, text and random numbers. See transform_cases.py.
#include <map>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/serialize/torch_file.h>

#include "parity/transform_factory.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using transforms::OptionalGenerator;

struct TransformCase {
  std::string name;
  std::string description;
  std::string text;
  Dict arguments;
  at::Tensor image;
  at::Tensor result;
  std::uint64_t seed;
  double next_normal;
  std::int64_t next_integer;
};

TransformCase case_of(const Value& value) {
  return {.name = value["name"].as_string(),
          .description = value["name"].as_string() + " " + repr(value["arguments"]) + " of " +
                         repr(value["inputs"]) + ", seed " + repr(value["seed"]),
          .text = value["text"].as_string(),
          .arguments = value["arguments"].as_dict(),
          .image = value["inputs"].as_items()[0].as_tensor(),
          .result = value["results"].as_items()[0].as_tensor(),
          .seed = static_cast<std::uint64_t>(value["seed"].as_int()),
          .next_normal = value["next"].as_items()[0].as_double(),
          .next_integer = value["next"].as_items()[1].as_int()};
}

class TransformsParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempFolder folder;
    run_python("parity/transform_cases.py", {.args = {folder.file("cases.pt")}});
    const auto written = load(folder / "cases.pt");
    for (const auto& each : written.as_items()) cases_[each["name"].as_string()].push_back(case_of(each));
  }

  // Whether both drew as many numbers, of the same kinds.
  static void compare_states(const TransformCase& expected, const OptionalGenerator& generator) {
    ASSERT_EQ(at::randn({}, generator).item<double>(), expected.next_normal) << expected.description;
    ASSERT_EQ(at::empty({}, at::kLong).random_(generator).item<std::int64_t>(), expected.next_integer)
        << expected.description;
  }

  static void compare(const TransformCase& expected) {
    const auto transform = make_transform(expected.name, expected.arguments);
    ASSERT_EQ(transform.to_string(), expected.text);
    const auto before = expected.image.clone();
    const OptionalGenerator own = at::make_generator<at::CPUGeneratorImpl>(expected.seed);
    torch::manual_seed(expected.seed);
    for (const auto& generator : {own, OptionalGenerator()}) {
      const auto result = transform(expected.image, generator);
      ASSERT_EQ(result.scalar_type(), expected.result.scalar_type()) << expected.description;
      ASSERT_EQ(result.sizes(), expected.result.sizes()) << expected.description;
      ASSERT_TRUE(at::equal(result, expected.result))
          << expected.description << ": the greatest difference is "
          << (result.to(at::kDouble) - expected.result.to(at::kDouble)).abs().max().item<double>();
      compare_states(expected, generator);
    }
    ASSERT_TRUE(at::equal(expected.image, before)) << expected.description;
  }

  static void compare_all(const std::string& name, std::size_t least) {
    ASSERT_GE(cases_[name].size(), least) << name;
    for (const auto& each : cases_[name]) ASSERT_NO_FATAL_FAILURE(compare(each));
  }

  static std::map<std::string, std::vector<TransformCase>> cases_;
};

std::map<std::string, std::vector<TransformCase>> TransformsParity::cases_;

TEST_F(TransformsParity, Resize) { compare_all("Resize", 40); }
TEST_F(TransformsParity, CenterCrop) { compare_all("CenterCrop", 40); }
TEST_F(TransformsParity, RandomCrop) { compare_all("RandomCrop", 100); }
TEST_F(TransformsParity, RandomResizedCrop) { compare_all("RandomResizedCrop", 100); }
TEST_F(TransformsParity, RandomHorizontalFlip) { compare_all("RandomHorizontalFlip", 100); }
TEST_F(TransformsParity, RandomVerticalFlip) { compare_all("RandomVerticalFlip", 100); }
TEST_F(TransformsParity, Pad) { compare_all("Pad", 40); }
TEST_F(TransformsParity, ToTensor) { compare_all("ToTensor", 40); }
TEST_F(TransformsParity, ToDtype) { compare_all("ToDtype", 40); }
TEST_F(TransformsParity, Normalize) { compare_all("Normalize", 40); }
TEST_F(TransformsParity, Compose) { compare_all("Compose", 140); }
TEST_F(TransformsParity, RandomApply) { compare_all("RandomApply", 20); }
TEST_F(TransformsParity, RandomChoice) { compare_all("RandomChoice", 20); }

}  // namespace
}  // namespace lockstep::testing
