// SPDX-License-Identifier: BSD-3-Clause
// `lockstep data`, the real program, on pictures that the live Python has written.
#include <fstream>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/data/images.h>

#include "lockstep_data/transform_text.h"
#include "support/python.h"
#include "tools/tool_program.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class Data : public ToolProgram {
 protected:
  Data() : ToolProgram("data") { run_python("tools/data_pictures.py", {.args = {path("").string()}}); }

  std::string shown(const Words& more) const {
    Words words{"show", file("pictures"), "--out", file("grid.png")};
    words.insert(words.end(), more.begin(), more.end());
    return expect_success(words);
  }
  at::Tensor grid() const { return data::read_image(path("grid.png")); }
};

TEST_F(Data, ReadsTransformsAsPythonDoes) {
  const auto texts = nlohmann::json::parse(std::ifstream(path("texts.json")));
  EXPECT_GE(texts.size(), 30);
  for (const auto& [text, printed] : texts.items()) {
    const auto transforms = data_tool::transforms_of(text);
    ASSERT_EQ(transforms.size(), 1) << text;
    EXPECT_EQ(transforms.front().to_string(), printed.get<std::string>()) << text;
  }
}

TEST_F(Data, DrawsWhatTorchvisionDraws) {
  const auto out = shown({"--transform", "Resize(24), CenterCrop(20)", "--nrow", "4", "--in-order"});
  EXPECT_TRUE(at::equal(grid(), data::read_image(path("expected.png"))));
  EXPECT_THAT(out, AllOf(HasSubstr("6 files of 2 classes"), HasSubstr("row 1: cat, cat, cat, dog\n"),
                         HasSubstr("row 2: dog, dog\n"), Not(HasSubstr("normalization"))));
}

TEST_F(Data, ANormalizationIsNotDrawn) {
  shown({"--transform", "RandomCrop(20), ToTensor()", "--seed", "4"});
  const auto plain = grid();
  EXPECT_THAT(
      shown({"--transform",
             "Compose([ToImage(), RandomCrop(20), ToTensor(), Normalize([0.5], [0.1]), RandomErasing(p=0)])",
             "--seed", "4"}),
      HasSubstr("without the normalization"));
  EXPECT_TRUE(at::equal(grid(), plain));
  shown({"--transform", "RandomCrop(20), ToTensor()", "--seed", "5"});
  EXPECT_FALSE(at::equal(grid(), plain));
}

TEST_F(Data, ErrorsAreOneLine) {
  const Words words{"show", file("pictures"), "--out", file("grid.png"), "--transform"};
  const auto with = [&words](const std::string& transform) {
    auto more = words;
    more.push_back(transform);
    return more;
  };
  EXPECT_THAT(expect_failure(with("Foo()"), 2),
              HasSubstr("there is no transform Foo; the transforms are AutoAugment"));
  EXPECT_THAT(expect_failure(with("Normalize(0.5, 0.5)"), 2),
              HasSubstr("no transform that changes the picture"));
  EXPECT_THAT(expect_failure(with("Pad(1)"), 2), HasSubstr("samples of the shapes"));
}

TEST(TransformText, NamesWhatIsWrong) {
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { data_tool::transforms_of(text); }, ThrowsMessage<ArgumentError>(HasSubstr(why)));
  };
  refused("RandomCrop(3, pading=2)", "RandomCrop: has no argument pading");
  refused("RandomCrop()", "RandomCrop: needs the argument size");
  refused("RandomCrop(3, size=4)", "argument size is repeated");
  refused("Pad(3, fill=1, fill=2)", "argument fill is repeated");
  refused("Pad(padding=3, 1)", "expected a keyword argument at '1)'");
  refused("ToTensor(1)", "takes at most 0 arguments, but has 1");
  refused("Resize('big')", "the value of size has the wrong type");
  refused("Resize(2.5)", "the value of size has the wrong type");
  refused("RandomApply([3])", "a transform is a call");
  refused("Resize(224", "Resize(224: expected ',' or ')' at 'the end'");
  refused("Resize(224) Pad(1)", "expected ',' at 'Pad(1)'");
  refused("Pad('edge", "expected a closing quote");
  refused("Pad(1/0)", "a number other than 0");
  refused("Pad(1/", "expected a number at 'the end'");
  refused("Pad(-)", "expected a number at '-)'");
  refused(std::string(100, '['), "less nesting");
}

}  // namespace
}  // namespace lockstep::testing
