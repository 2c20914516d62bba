// Gradients are made anew in each step: the Runtime knows of each when it is
// used by the parameter's gradient of the step before.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/window/byte_window_fixture.h"

namespace terrace {
namespace {

class WindowGradientTest : public ByteWindowTest {
 protected:
  // As backward does.
  void AddGradient(FakeTensor& gradient, int parameter) {
    gradient.SetGradientOf(tensor(parameter));
    ASSERT_TRUE(window().Add({&gradient}).ok());
    const std::vector<std::byte> source(3 * kPage, std::byte{7});
    gradient.word().Pin();
    ASSERT_TRUE(window().Fill(gradient, source.data()).ok());
    window().EndUse(gradient);
  }
  absl::Status ReadGradient(FakeTensor& gradient) {
    return WithBytes(window(), gradient, /*writes=*/false,
                     [](absl::Span<std::byte> bytes) {
                       EXPECT_EQ(bytes.back(), std::byte{7});
                     });
  }
};

// Two parameters' gradients, and an activation of the same number as one of
// them, are used at different times: the one that is used last leaves, which is
// not the one that came first.
TEST_F(WindowGradientTest, EachHasAPlaceOfItsOwnInTheStep) {
  ReadNothingAhead();
  Make(12);
  Fill({3, 3});
  for (int step = 0; step < 5; ++step) {
    window().BeginStep();
    const std::string name = std::to_string(step);
    FakeTensor activation("activation " + name, 3 * kPage);
    activation.SetNumber(1);
    ASSERT_TRUE(window().Add({&activation}).ok());
    const std::vector<std::byte> source(3 * kPage, std::byte{7});
    activation.word().Pin();
    ASSERT_TRUE(window().Fill(activation, source.data()).ok());
    window().EndUse(activation);
    FakeTensor next("next " + name, 3 * kPage);
    AddGradient(next, 1);
    FakeTensor late("late " + name, 3 * kPage);
    AddGradient(late, 0);
    EXPECT_TRUE(Read(0).ok());  // three of these four have room
    if (step > 0) {
      EXPECT_EQ(late.data, nullptr) << step;
      EXPECT_NE(activation.data, nullptr) << step;
      EXPECT_NE(next.data, nullptr) << step;
    }
    EXPECT_TRUE(ReadGradient(next).ok());
    EXPECT_TRUE(ReadGradient(activation).ok());
    EXPECT_TRUE(ReadGradient(late).ok());
    for (FakeTensor* const each : {&activation, &late, &next}) Remove(*each);
  }
}

}  // namespace
}  // namespace terrace
