/* How the warps of a block tell each other of arrivals (cuda/gpu/sums/halo.cuh, look and poll), as a model that Spin
 * checks in every order: two warps of LANES lanes, ARRIVALS signals.
 *
 * Memory is weak: rows that a signal announces may be read as they were before, unless the reader knows of them. A lane
 * knows of rows whose signal it has seen, and fenced after that. It also knows what lanes knew that it has met since
 * (sync), and what a lane knew that stored a word with release, if it has read that word with acquire. A load of the
 * word finds any value that was stored since the last that this warp has found; a look at a signal may come too early.
 *
 * Each WITHOUT_... takes one element away; each must be caught.
 */
#define ARRIVALS 3
#define ALL(count) ((1 << (count)) - 1)

byte row, signal;  /* a bit for each arrival */
byte here;         /* the word: arrivals without a gap */
byte stored = 1;   /* values that the word has had, a bit each */
byte told[ARRIVALS + 1]; /* what the lane knew that stored it */
bool polling;

proctype owner(byte at) {
  atomic { row = row | (1 << at) };
  atomic { signal = signal | (1 << at) }
}

/* The word, as a lane may find it. */
inline load(least) {
  value = least;
  do
  :: value < here -> value++
  :: (stored >> value) & 1 -> break
  od;
#ifndef WITHOUT_ACQUIRE
  known[0] = known[0] | told[value]
#endif
}

inline sync() {
  known[0] = known[0] | known[1];
  known[1] = known[0]
}

/* A signal each lane. */
inline look_at_signals() {
  found = 0;
  lane = 0;
  do
  :: lane < 2 ->
     if
     :: mine + lane < ARRIVALS && ((signal >> (mine + lane)) & 1) ->
        seen[lane] = seen[lane] | (1 << (mine + lane));
        if
#ifdef WITHOUT_GAPS
        :: true -> found++
#else
        :: found == lane -> found++
        :: else -> skip
#endif
        fi
     :: true -> skip
     fi;
     lane++
  :: else -> break
  od;
  lane = 0;
  do
  :: lane < found ->
#ifndef WITHOUT_FENCE
     known[lane] = known[lane] | seen[lane];
#endif
     lane++
  :: else -> break
  od;
  mine = mine + found
}

proctype warp() {
  byte mine, before, value, found, lane, known[2], seen[2];
  bool locked;
  do
  :: mine == ARRIVALS -> break
  :: else ->
     /* There is nothing to find until one of these is so. */
     (here > mine || (!polling && (signal >> mine) & 1));
     before = mine;
     atomic { load(mine) };
     if
     :: value == before ->
        atomic {
          if
#ifdef WITHOUT_LOCK
          :: true -> locked = true
#else
          :: !polling -> polling = true; locked = true
          :: else -> skip
#endif
          fi
        }
     :: else -> mine = value
     fi;
     if
     :: locked ->
#ifndef WITHOUT_READING_AGAIN
        atomic { load(here); mine = value };
#endif
        before = mine;
        do
        :: atomic {
             look_at_signals();
             if
             :: found == 2 && mine < ARRIVALS -> skip
             :: else -> break
             fi
           }
        od;
#ifndef WITHOUT_SYNC_BEFORE_TELLING
        sync();
#endif
        if
        :: mine != before ->
           atomic {
             assert(mine > here); /* it only grows */
             here = mine;
             stored = stored | (1 << here);
#ifndef WITHOUT_RELEASE
             told[here] = known[0]
#endif
           }
        :: else -> skip
        fi;
#ifndef WITHOUT_UNLOCK
        polling = false;
#endif
        locked = false
     :: else -> skip
     fi;
#ifndef WITHOUT_SYNC_AFTER_LOOKING
     sync();
#endif
     /* All lanes read all rows that are there. */
     assert((row & ALL(mine)) == ALL(mine));
     assert((known[0] & ALL(mine)) == ALL(mine) && (known[1] & ALL(mine)) == ALL(mine))
  od
}

init {
  byte at;
  atomic {
    for (at : 0 .. ARRIVALS - 1) { run owner(at) };
    run warp();
    run warp()
  }
}
