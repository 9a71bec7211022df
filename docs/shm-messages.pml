/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages from one rank to another; see docs/shm-protocol.md (spin -DMESSAGES=4 ...). Spin chooses one of two tags for
   each message, and short or long. The receiver has one or up to two receives in progress. The data of a message is its
   number. A wait ends when something was posted since the last scan began, so an overlooked message is a deadlock. */

#define PLACES 2
#define TAGS 2
#define NONE 255

byte tag[MESSAGES + 1];  /* of message 1, 2, ... */
byte posts, frees;       /* counts of posted and freed slots, for the waits */

/* Channel::messages */
bool posted[PLACES];
byte order[PLACES];
byte label[PLACES];      /* Message::tag */
byte data[PLACES];

proctype sender() {
  byte n = 1, i, place, first, seen;
  bool found;
  do
  :: n > MESSAGES -> break
  :: else ->
       if
       :: first = n % PLACES  /* short: usual_slot() */
       :: first = 0           /* long */
       fi;
       found = false;
       do
       :: found -> break
       :: else ->
            seen = frees;
            i = 0;
            do
            :: i == PLACES -> break
            :: else ->
                 place = (first + i) % PLACES;
                 if
                 :: !posted[place] -> found = true; break
                 :: else -> i = i + 1
                 fi
            od;
            if
            :: found
            :: else -> frees != seen
            fi
       od;
       order[place] = n;
       label[place] = tag[n];
       data[place] = n;
       atomic { posted[place] = true; posts = posts + 1 };
       n = n + 1
  od
}

/* Taken::add(). Frees the slot. */
inline take_from(place) {
  count = count + 1;
  if
  :: order[place] > last -> last = order[place]
  :: else
  fi;
  atomic { posted[place] = false; frees = frees + 1 }
}

/* Receive::look_through() for `wanted`. Sets `best` to the slot, or to PLACES. */
inline look_through() {
  best = PLACES;
  waiting = 0;
  i = 0;
  do
  :: i == PLACES -> break
  :: else ->
       if
       :: posted[i] ->
            waiting = waiting + 1;
            if
            :: label[i] == wanted && best == PLACES -> best = i
            :: label[i] == wanted && best != PLACES && order[i] < order[best] -> best = i
            :: else
            fi
       :: else
       fi;
       i = i + 1
  od;
  if
  :: best == PLACES && waiting == PLACES ->
       /* park_oldest() */
       if
       :: order[0] < order[1] -> i = 0
       :: else -> i = 1
       fi;
       parked[parked_count] = data[i];
       parked_count = parked_count + 1;
       take_from(i)
  :: else
  fi
}

/* Receive::find_message() */
inline find_message() {
  best = PLACES;
  i = (last + 1) % PLACES;
  if
  :: count == last && posted[i] && label[i] == wanted && order[i] == last + 1 -> best = i
  :: else ->
       look_through();
       if
       :: best != PLACES -> look_through()
       :: else
       fi
  fi
}

/* Sets `got` to the message for a receive of `wanted`, or to 0. */
inline try_receive() {
  got = 0;
  i = 0;
  do
  :: i == parked_count -> break
  :: got == 0 && i < parked_count && parked[i] != 0 && tag[parked[i]] == wanted ->
       got = parked[i];
       parked[i] = 0
  :: else -> i = i + 1
  od;
  if
  :: got == 0 ->
       find_message();
       if
       :: best != PLACES -> got = data[best]; take_from(best)
       :: else
       fi
  :: else
  fi
}

proctype receiver() {
  byte want[2], pending, left[TAGS], received, next[TAGS];
  byte parked[MESSAGES], parked_count, count, last;
  byte wanted, got, best, waiting, i, j, seen;
  byte most;
  bool moved;
  if
  :: most = 1
  :: most = 2
  fi;
  d_step {
    for (i : 1 .. MESSAGES) { left[tag[i]] = left[tag[i]] + 1 }
  }
  do
  :: received == MESSAGES -> break
  :: pending < most && left[0] > 0 -> atomic { want[pending] = 0; pending = pending + 1; left[0] = left[0] - 1 }
  :: pending < most && left[1] > 0 -> atomic { want[pending] = 1; pending = pending + 1; left[1] = left[1] - 1 }
  :: pending > 0 ->
       /* Engine::advance_transfers() */
       moved = false;
       seen = posts;
       j = 0;
       do
       :: j == pending -> break
       :: else ->
            wanted = want[j];
            if
            :: j == 1 && want[0] == wanted -> j = j + 1  /* an earlier receive has the same tag */
            :: else ->
                 try_receive();
                 if
                 :: got == 0 -> j = j + 1
                 :: else ->
                      d_step {
                        moved = true;
                        assert(j == 0 || want[0] != wanted);
                        /* The oldest message of its tag. */
                        next[wanted] = next[wanted] + 1;
                        do
                        :: tag[next[wanted]] != wanted || next[wanted] == 0 -> next[wanted] = next[wanted] + 1
                        :: else -> break
                        od;
                        assert(got == next[wanted]);
                        if
                        :: j == 0 -> want[0] = want[1]
                        :: else
                        fi;
                        pending = pending - 1;
                        received = received + 1
                      }
                 fi
            fi
       od;
       /* Engine::nap(), unless the awaited receive, which may be any, has completed. */
       if
       :: moved
       :: pending > 0 -> posts != seen
       fi
  od
}

init {
  byte i;
  atomic {
    tag[0] = NONE;
    for (i : 1 .. MESSAGES) {
      if
      :: tag[i] = 0
      :: tag[i] = 1
      fi
    };
    run sender();
    run receiver()
  }
}
