// Rings against a plain queue of packets, places that no writer or reader can
// have, and rests and wake-ups of two threads.
#include "daemon/wire/ring/packet_ring.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/ring/ring_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

Bytes PacketOf(size_t size, uint32_t seed) {
  Bytes packet(size);
  for (size_t i = 0; i < size; ++i) {
    packet[i] = static_cast<std::byte>(seed + i * 7);
  }
  return packet;
}

class PacketRingTest : public testing::Test {
 protected:
  RingWords& words() const { return *ring_.words; }

  const RingFile file_ = *RingFile::Make();
  const RingView ring_ = file_.rings().requests;
  RingWriter writer_{ring_};
  RingReader reader_{ring_};
};

TEST_F(PacketRingTest, WhatIsReadIsWhatWasWritten) {
  // So that places begin anew, as after four billion bytes.
  words().written = words().read = 0u - 5'000'000;
  RingWriter writer(ring_);
  RingReader reader(ring_);
  std::mt19937 draw(5);
  std::deque<Bytes> written;
  for (int step = 0; step < 20'000; ++step) {
    if (draw() % 2 == 0) {
      const bool is_long = draw() % 16 == 0;
      const size_t size = 1 + draw() % (is_long ? kMostPacketBytes : 300);
      Bytes packet = PacketOf(size, draw());
      const absl::StatusOr<bool> has_room = writer.Write(packet);
      ASSERT_TRUE(has_room.ok()) << has_room.status();
      if (*has_room) written.push_back(std::move(packet));
    } else {
      Bytes packet;
      const absl::StatusOr<bool> has_read = reader.Read(&packet);
      ASSERT_TRUE(has_read.ok()) << has_read.status();
      ASSERT_EQ(*has_read, !written.empty());
      if (written.empty()) continue;
      EXPECT_EQ(packet, written.front());
      written.pop_front();
    }
  }
}

TEST_F(PacketRingTest, ItHasRoomForAsMuchAsItHasBytes) {
  const Bytes longest = PacketOf(kMostPacketBytes, 1);
  int count = 0;
  while (*writer_.Write(longest)) ++count;
  EXPECT_EQ(count, 3);  // with its length each is longer than a quarter
  EXPECT_TRUE(writer_.AwaitRoom(longest.size()));
  Bytes read;
  EXPECT_TRUE(*reader_.Read(&read));
  EXPECT_TRUE(read == longest);
  EXPECT_TRUE(reader_.WakeWriter());
  EXPECT_FALSE(reader_.WakeWriter());  // once
  EXPECT_FALSE(writer_.AwaitRoom(longest.size()));
  EXPECT_TRUE(*writer_.Write(longest));
}

// All places of a writer, as a reader that has read nothing may find them: none
// is read beyond the ring, and what cannot be is refused.
TEST_F(PacketRingTest, PlacesOfAWriterThatAreNoneAreRefused) {
  std::vector<uint32_t> places;
  for (uint32_t i = 0; i < 70'000; ++i) places.push_back(i);
  for (uint32_t i = 0; i < 1000; ++i) {
    places.push_back(kRingBytes - 500 + i);
    places.push_back(0u - i);
    places.push_back((1u << 31) - 500 + i);
  }
  for (const uint32_t length : {0u, 1u, 4u, 100u, 65'536u, 65'537u, ~0u}) {
    std::memcpy(ring_.bytes, &length, sizeof(length));
    const uint64_t taken = 4 + (uint64_t{length} + 3) / 4 * 4;
    for (const uint32_t place : places) {
      words().read = 0;
      words().written = place;
      RingReader reader(ring_);
      Bytes packet;
      const absl::StatusOr<bool> read = reader.Read(&packet);
      if (place == 0) {
        ASSERT_TRUE(read.ok() && !*read);
        continue;
      }
      const bool is_packet = place >= 4 && place <= kRingBytes && length > 0 &&
                             length <= kMostPacketBytes && taken <= place;
      ASSERT_EQ(read.ok(), is_packet) << place << ", " << length;
      if (is_packet) {
        ASSERT_EQ(packet.size(), length);
      }
    }
  }
}

TEST_F(PacketRingTest, PlacesOfAReaderThatAreNoneAreRefused) {
  const Bytes packet = PacketOf(100, 1);
  ASSERT_TRUE(*writer_.Write(packet));
  for (const uint32_t place : {105u, 1u << 20, 1u << 31, ~0u - kRingBytes}) {
    words().read = place;
    const auto written = writer_.Write(packet);
    ASSERT_TRUE(absl::IsInvalidArgument(written.status())) << place;
    EXPECT_THAT(std::string(written.status().message()), HasSubstr("reader"));
    EXPECT_TRUE(writer_.AwaitRoom(packet.size()));
  }
}

TEST_F(PacketRingTest, AReaderThatRestsIsRungForOnce) {
  const Bytes packet = PacketOf(8, 1);
  Bytes read;
  ASSERT_TRUE(*writer_.Write(packet));
  EXPECT_FALSE(writer_.WakeReader());  // it did not ask
  EXPECT_FALSE(reader_.Rest());        // it has something to read
  ASSERT_TRUE(*reader_.Read(&read));
  EXPECT_TRUE(reader_.Rest());
  ASSERT_TRUE(*writer_.Write(packet));
  EXPECT_TRUE(writer_.WakeReader());
  EXPECT_FALSE(writer_.WakeReader());
  reader_.Stir();
  words().thread = kLooks;
  ASSERT_TRUE(*reader_.Read(&read));
  EXPECT_TRUE(reader_.Rest());
  ASSERT_TRUE(*writer_.Write(packet));
  EXPECT_FALSE(writer_.WakeReader());  // a thread of it looks
  words().thread = kSleeps;
  const uint32_t before = words().wakes;
  EXPECT_FALSE(writer_.WakeReader());
  EXPECT_EQ(words().wakes, before + 1);
}

// Who rests or waits for room is always woken: both sides sleep as often as
// they can, a million times in all, or as often as TERRACE_SLEEPS says.
class SleepingRingTest : public PacketRingTest {
 protected:
  // What one side sleeps at and the other one rings.
  struct Bell {
    ~Bell() { close(event); }
    void Ring() const { EXPECT_EQ(eventfd_write(event, 1), 0); }
    // False: nobody has rung.
    bool Sleep() const {
      pollfd wait = {event, POLLIN, 0};
      eventfd_t heard = 0;
      if (poll(&wait, 1, 20'000) != 1) return false;
      eventfd_read(event, &heard);
      return true;
    }
    const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  };

  static int64_t Sleeps() {
    const char* const asked = std::getenv("TERRACE_SLEEPS");
    int64_t sleeps = 1'000'000;
    if (asked != nullptr) {
      EXPECT_TRUE(absl::SimpleAtoi(asked, &sleeps));
    }
    return sleeps;
  }
  bool Write(const Bytes& packet) {
    while (!*writer_.Write(packet)) {
      if (!writer_.AwaitRoom(packet.size())) continue;
      ++slept_;
      if (!for_room_.Sleep()) return false;
    }
    if (writer_.WakeReader()) for_news_.Ring();
    return true;
  }
  // Nothing: nobody has rung.
  std::optional<Bytes> Read() {
    Bytes packet;
    while (true) {
      if (*reader_.Read(&packet)) {
        if (reader_.WakeWriter()) for_room_.Ring();
        return packet;
      }
      if (!reader_.Rest()) continue;
      ++slept_;
      if (!for_news_.Sleep()) return std::nullopt;
      reader_.Stir();
    }
  }

  const Bell for_news_;
  const Bell for_room_;
  std::atomic<int64_t> slept_ = 0;
};

TEST_F(SleepingRingTest, NoWakeUpIsLost) {
  const int64_t sleeps = Sleeps();
  // Long enough for the ring to be full after some.
  const Bytes packet = PacketOf(kRingBytes / 6, 3);
  const Bytes last = PacketOf(1, 0);
  std::thread writer([&] {
    bool was_rung = true;
    while (was_rung && slept_ < sleeps) was_rung = Write(packet);
    EXPECT_TRUE(was_rung && Write(last)) << "after " << slept_ << " sleeps";
  });
  std::optional<Bytes> read = packet;
  while (read.has_value() && *read != last) read = Read();
  EXPECT_TRUE(read.has_value()) << "after " << slept_ << " sleeps";
  writer.join();
}

}  // namespace
}  // namespace terrace
