// Pinning our own mappings: in pieces, all or nothing, and never longer than
// the mapping lives.
#include "base/device.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Keeps a diary of what is registered, by offset and size.
class DiaryDevice final : public Device {
 public:
  explicit DiaryDevice(const std::byte* base) : base_(base) {}

  std::string name() const override { return "diary:0"; }
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t) override {
    return absl::UnimplementedError("none");
  }
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override {
    return absl::UnimplementedError("none");
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  std::vector<std::string> diary;
  int fails_at = -1;

 private:
  absl::StatusOr<HostRegistration> Register(
      absl::Span<std::byte> piece) override {
    const std::string named =
        absl::StrCat(piece.data() - base_, "+", piece.size());
    if (fails_at-- == 0) {
      return absl::ResourceExhaustedError("diary:0: no locked memory");
    }
    diary.push_back(absl::StrCat("pin ", named));
    return HostRegistration(piece.data(), [this, named](void*) {
      diary.push_back(absl::StrCat("unpin ", named));
    });
  }

  const std::byte* const base_;
};

// One that does neither.
class PlainDevice final : public Device {
 public:
  std::string name() const override { return "plain:0"; }
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t) override {
    return absl::UnimplementedError("none");
  }
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override {
    return absl::UnimplementedError("none");
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

class PinTest : public testing::Test {
 protected:
  // Says in the diary when it is unmapped.
  std::shared_ptr<const void> Mapping() {
    return {bytes_.data(),
            [this](const void*) { device_.diary.push_back("unmap"); }};
  }
  absl::Span<std::byte> Bytes() { return absl::MakeSpan(bytes_); }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(10);
  DiaryDevice device_{bytes_.data()};
};

TEST_F(PinTest, APieceIsAtMostSoLarge) {
  const auto pinned = device_.Pin(Mapping(), Bytes(), 4);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_THAT(device_.diary, ElementsAre("pin 0+4", "pin 4+4", "pin 8+2"));
  EXPECT_EQ(pinned->pieces(), 3);
  EXPECT_EQ(pinned->bytes().data(), bytes_.data());
  EXPECT_EQ(pinned->bytes().size(), 10u);
}

TEST_F(PinTest, APieceOfAllIsOne) {
  const auto pinned = device_.Pin(Mapping(), Bytes());
  EXPECT_EQ(pinned->pieces(), 1);
  EXPECT_LE(Device::kPinPieceBytes, 1 << 30);
}

TEST_F(PinTest, TheMappingGoesAfterItsRegistrations) {
  auto mapping = Mapping();
  auto pinned = device_.Pin(mapping, Bytes(), 5);
  ASSERT_TRUE(pinned.ok());
  mapping.reset();  // whoever had it
  device_.diary.clear();
  *pinned = PinnedMapping();
  EXPECT_THAT(device_.diary, ElementsAre("unpin 5+5", "unpin 0+5", "unmap"));
}

TEST_F(PinTest, AFailedPieceTakesBackThoseBeforeIt) {
  for (int piece = 0; piece < 4; ++piece) {
    device_.diary.clear();
    device_.fails_at = piece;
    const auto pinned = device_.Pin(Mapping(), Bytes(), 3);
    EXPECT_EQ(pinned.status(), absl::ResourceExhaustedError(absl::StrCat(
                                   "pinning bytes ", 3 * piece, " to ",
                                   std::min(3 * piece + 3, 10),
                                   " of 10: diary:0: no locked memory")));
    std::vector<std::string> expected;
    for (int i = 0; i < piece; ++i) {
      expected.push_back(absl::StrCat("pin ", 3 * i, "+3"));
    }
    for (int i = piece; i > 0; --i) {
      expected.push_back(absl::StrCat("unpin ", 3 * i - 3, "+3"));
    }
    expected.push_back("unmap");
    EXPECT_EQ(device_.diary, expected);
  }
}

TEST_F(PinTest, WhatIsMovedIsPinnedOnce) {
  auto pinned = device_.Pin(Mapping(), Bytes(), 5);
  ASSERT_TRUE(pinned.ok());
  device_.diary.clear();
  PinnedMapping first = *std::move(pinned);
  PinnedMapping second(std::move(first));
  EXPECT_EQ(second.pieces(), 2);
  EXPECT_THAT(first.bytes(), IsEmpty());
  EXPECT_THAT(device_.diary, IsEmpty());
  // Over another pin: that ends whole, registrations first.
  PinnedMapping third = *device_.Pin(Mapping(), Bytes(), 10);
  device_.diary.clear();
  third = std::move(second);
  EXPECT_THAT(device_.diary, ElementsAre("unpin 0+10", "unmap"));
  EXPECT_EQ(third.pieces(), 2);
}

TEST(Device, WhatItCannotDoIsUnimplementedAndNamed) {
  PlainDevice device;
  EXPECT_EQ(device.Allocate(64).status(),
            absl::UnimplementedError("plain:0: 64 bytes asked of a device that "
                                     "gives no memory"));
  std::byte bytes[4];
  const std::shared_ptr<const void> mapping(bytes, [](const void*) {});
  EXPECT_EQ(device.Pin(mapping, bytes).status(),
            absl::UnimplementedError(
                "pinning bytes 0 to 4 of 4: plain:0: this device registers no "
                "host memory"));
  EXPECT_TRUE(device.Health().ok());
}

}  // namespace
}  // namespace terrace
