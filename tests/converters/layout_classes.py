"""True class folders with difficult names, and trees that look like them: each packs without an option."""

# ruff: noqa: E501  (a table of trees)

from __future__ import annotations

from layout_check import Layout, Tree
from layout_pictures import Pic

__all__ = ["CLASSES", "HIDDEN", "classes"]


def classes(
    *names: str, n: int = 4, pattern: str = "{c}/{k:03}.jpg", start: int = 0, suffix: str = ""
) -> dict[str, Pic | str | bytes]:
    """Return class folders: pictures that have nothing in common, though their names may agree."""
    return {
        pattern.format(c=name, k=k) + suffix: Pic(start + 40 * i + k)
        for i, name in enumerate(names)
        for k in range(n)
    }


def own(*names: str, n: int = 4, root: str = "") -> dict[str, Pic | str | bytes]:
    """Return class folders whose files are called by their classes."""
    return classes(*names, n=n, pattern=root + "{c}/{c}_{k}.jpg")


def splits(
    names: tuple[str, ...], labels: tuple[str, ...], n: int = 3, root: str = ""
) -> dict[str, Pic | str | bytes]:
    """Return split folders of class folders."""
    found: dict[str, Pic | str | bytes] = {}
    for i, split in enumerate(names):
        found |= classes(*labels, n=n, pattern=f"{root}{split}/{{c}}/{{k:03}}.jpg", start=500 * i)
    return found


def views(*names: str, n: int = 10, background: int = -1, same: bool = False) -> Tree:
    """Return frames of clips: of an object each, or of one place before a camera that stands still."""
    return {
        f"{name}/{k:04}.jpg": Pic(0 if same else 40 * i, "photo", (48, 36), k, background)
        for i, name in enumerate(names)
        for k in range(n)
    }


def sized(*names: str) -> Tree:
    sizes = [(48, 36), (64, 24), (33, 57), (24, 24), (50, 41)]
    suffixes = ["jpg", "JPG", "jpeg", "png", "PNG"]
    return {
        f"{name}/{k}.{suffixes[k]}": Pic(40 * i + k, "photo", sizes[(i + k) % 5])
        for i, name in enumerate(names)
        for k in range(5)
    }


CAT_DOG = classes("cat", "dog")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
FACES = ("with_mask", "without_mask", "mask_weared_incorrect")
PLANTS = ("Pepper__bell___Bacterial_spot", "Pepper__bell___healthy", "Tomato_Leaf_Mold")
SCENES = ("buildings", "forest", "glacier", "mountain", "sea", "street")


def folder(tree: Tree, level: int = -2, note: str = "", split: int | None = None) -> Layout:
    return Layout("classes", tree, "folder", level=level, note=note, split=split)


def split(names: tuple[str, ...], labels: tuple[str, ...], n: int = 3, root: str = "") -> Layout:
    return folder(splits(names, labels, n, root), split=root.count("/"))


CLASSES: dict[str, Layout] = {
    # -- names that mean something else elsewhere
    "hands: left, right": folder(classes("left", "right", n=8)),
    "hands: left_hand, right_hand": folder(classes("left_hand", "right_hand", n=8)),
    "arrows: up, down, left, right": folder(classes("up", "down", "left", "right", n=8)),
    "sign language: A to Z": folder(classes(*LETTERS, n=2)),
    "sign language: A, B, C": folder(classes("A", "B", "C", n=8)),
    "sign language: A to Z, del, nothing, space": folder(classes(*LETTERS, "del", "nothing", "space", n=1)),
    "grades: A, B": folder(own("A", "B", n=8)),
    "letters: a, b": folder(classes("a", "b", n=8)),
    "rooms: clean, messy": folder(classes("clean", "messy", n=8)),
    "rooms in splits: clean, messy": split(("train", "val"), ("clean", "messy"), 8),
    "plates: cleaned, dirty": folder(splits(("train",), ("cleaned", "dirty"), 8)),
    "vehicles: train, bus, car": folder(classes("train", "bus", "car")),
    "vehicles: train among eight": folder(
        classes("airplane", "bicycle", "boat", "bus", "car", "motorcycle", "train", "truck")
    ),
    "vehicles in splits: train/train": split(("train", "test"), ("train", "bus", "car")),
    "COCO's things: train, bench, frisbee": folder(classes("bench", "frisbee", "train", "tv", "cell phone")),
    "digits: 0 to 9": folder(classes(*"0123456789")),
    "digits in splits": split(("train", "test"), tuple("0123456789"), 2),
    "numbers without zeros: 1 to 12": folder(classes(*map(str, range(1, 13)), n=2)),
    "ImageNet: n01440764": folder(own("n01440764", "n02102040", "n03000684")),
    "single letters: x, y": folder(classes("x", "y", n=8)),
    "real, fake": folder(classes("real", "fake", n=8)),
    "real and fake faces in splits": split(("train", "valid", "test"), ("fake", "real"), 6),
    "training_real, training_fake": folder(classes("training_real", "training_fake", n=8)),
    "products: input, output, cable": folder(own("input", "output", "cable")),
    "products: input, output": folder(own("input", "output", n=8)),
    "products: target among shops": folder(own("target", "walmart", "costco")),
    "brands: Original, Copy": folder(own("Original", "Copy", n=8)),
    "signs: high, low": folder(classes("high", "low", n=8)),
    "traffic: high, medium, low, empty": folder(classes("high", "medium", "low", "empty", n=6)),
    "resolution as a grade: hr, lr": folder(own("hr", "lr", n=8)),
    "face masks: three classes": folder(classes(*FACES, n=8)),
    "face masks: Mask, NoMask": folder(classes("Mask", "NoMask", n=8)),
    "face masks: mask, no_mask": folder(classes("mask", "no_mask", n=8)),
    "face masks, wrapped and split": split(("Train", "Validation", "Test"), ("WithMask", "WithoutMask"), 4, "Face Mask Dataset/"),
    "carnival: mask, costume, hat": folder(own("mask", "costume", "hat")),
    "tyres: Depth, Flat, Worn": folder(own("Depth", "Flat", "Worn")),
    "rgb in other words: rgba_led, rgb_strip, bulb": folder(own("rgba_led", "rgb_strip", "bulb")),
    "furniture: frames, mirrors, photos": folder(own("frames", "mirrors", "photos")),
    "documents: label, letter, form": folder(classes("label", "letter", "form")),
    "documents: image, text, table": folder(classes("image", "text", "table")),
    "quality: blur, sharp": folder(classes("blur", "sharp", n=8)),
    "quality: blurred, defocused_blurred, sharp": folder(
        classes("sharp", "defocused_blurred", "motion_blurred", n=8)
    ),
    "quality: noisy, clean of other scenes": folder(own("noisy", "clean", n=8)),
    "query types: query, answer, chart": folder(own("query", "answer", "chart")),
    "ground: ground, truth tables": folder(own("ground", "grass", "gravel")),
    "weather: rain, norain": folder(classes("rain", "norain", n=8)),
    "weather: day, night": folder(classes("day", "night", n=8)),
    "watermark, no-watermark of other pictures": split(("train", "valid"), ("watermark", "no-watermark"), 8),
    "before, after of other pictures": folder(own("before", "after", n=8)),
    "tests: positive, negative": folder(classes("Positive", "Negative", n=8)),
    "tests: test_strip, swab": folder(own("test_strip", "swab", "vial")),
    "val as a name: Val, Ann, Tom": folder(own("Ann", "Tom", "Valentin")),
    "moths: a genus called Data": folder(own("data_moth", "image_moth", "emperor_moth")),
    "yes, no": folder(classes("yes", "no", n=8)),
    "ok, ng": folder(classes("OK", "NG", n=8)),
    "one class": Layout("classes", classes("cat"), "flat/folder/refused", says="cat", count=4),
    # -- names that are hard to write
    "blanks": folder(classes("african elephant", "polar bear")),
    "unicode": folder(classes("猫", "狗", "鳥")),
    "accents and cyrillic": folder(classes("café", "Ærø", "кошка")),
    "brackets and dots": folder(classes("a.b", "c (1)", "d[2]", "e,f")),
    "case only": folder(classes("Cat", "cat", "CAT")),
    "hyphens: 001.ak47": folder(own("001.ak47", "002.american-flag", "257.clutter")),
    "negative numbers": folder(classes("-1", "0", "1")),
    "numbers and words": folder(classes("0", "1", "other")),
    "long names": folder(classes("x" * 120, "y" * 120)),
    "percent and hash": folder(classes("100%", "#1", "a&b")),
    # -- files
    "one image in a class": folder(classes("cat", "dog", n=6) | {"emu/1.jpg": Pic(900)}),
    "many to few": folder(classes("cat", n=40) | classes("dog", n=1, start=2000)),
    "mixed suffixes and sizes": folder(sized("cat", "dog", "emu")),
    "bmp and webp": folder({f"{c}/{k}.{s}": Pic(40 * i + k) for i, c in enumerate(("cat", "dog")) for k, s in enumerate(("bmp", "webp", "jpg"))}),
    "grey pictures": folder({f"{c}/{k}.png": Pic(40 * i + k, "gray") for i, c in enumerate(("cat", "dog")) for k in range(8)}),
    "uppercase suffixes": folder(classes("cat", "dog", pattern="{c}/{k}.JPG")),
    # -- other files
    "a note in a class": folder(CAT_DOG | {"cat/notes.txt": "Taken in May by Ann.\nSome are blurred.\n"}, note="notes.txt|txt"),
    "notes next to": folder(CAT_DOG | {"notes.txt": "We took these in the garden.\nThanks to Bob.\n"}),
    "README, LICENSE": folder(CAT_DOG | {"README.md": "# Cats\n", "LICENSE": "MIT", "LICENSE.txt": "MIT"}),
    "Roboflow's two READMEs": folder(
        splits(("train", "valid", "test"), ("cat", "dog"))
        | {"README.dataset.txt": "# cats > 1\nhttps://universe.roboflow.com\n",
           "README.roboflow.txt": "cats - v1\n==============\nThe dataset includes 12 images.\n"}
    ),
    "classes.txt next to": folder(CAT_DOG | {"classes.txt": "cat\ndog\n"}),
    "classes.txt with numbers": folder(CAT_DOG | {"classes.txt": "0 cat\n1 dog\n"}),
    "labels.txt of Teachable Machine": folder(CAT_DOG | {"labels.txt": "0 cat\n1 dog\n"}),
    "class_names.json next to": folder(CAT_DOG | {"class_names.json": '["cat", "dog"]'}),
    "class_indices.json next to": folder(CAT_DOG | {"class_indices.json": '{"0": "cat", "1": "dog"}'}),
    "class_to_idx.json next to": folder(CAT_DOG | {"class_to_idx.json": '{"cat": 0, "dog": 1}'}),
    "words.txt of wnids": folder(
        own("n01440764", "n02102040") | {"words.txt": "n01440764\ttench\nn02102040\tspringer\n"}
    ),
    "a script and a model next to": folder(
        CAT_DOG | {"train.py": "import torch\n", "model.h5": b"\x89HDF\r\n\x1a\n" + bytes(64), "requirements.txt": "torch\n"}
    ),
    "a PDF and a README.pdf": folder(CAT_DOG | {"paper.pdf": b"%PDF-1.4\n"}),
    "a video in a class": folder(CAT_DOG | {"cat/clip.mp4": bytes(32)}, note="mp4"),
    "a checksum file": folder(CAT_DOG | {"MD5SUMS.md5": "d41d8cd98f00b204e9800998ecf8427e  a.zip\n"}),
    # -- wrappers and splits
    "wrapped once": folder(classes("cat", "dog", pattern="pets/{c}/{k}.jpg")),
    "wrapped twice": folder(classes("cat", "dog", pattern="archive/pets/{c}/{k}.jpg")),
    "wrapped in images": folder(classes("cat", "dog", pattern="images/{c}/{k}.jpg")),
    "wrapped in data": folder(classes("cat", "dog", pattern="data/{c}/{k}.jpg")),
    "wrapped in train": folder(classes("cat", "dog", pattern="train/{c}/{k}.jpg")),
    "wrapped, with a README": folder(
        classes("cat", "dog", pattern="pets/{c}/{k}.jpg") | {"README.md": "# Pets\n"}
    ),
    "PlantVillage (Kaggle)": folder(classes(*PLANTS, pattern="archive/PlantVillage/PlantVillage/{c}/{k}.JPG")),
    "Intel scenes": split(("seg_train/seg_train", "seg_test/seg_test"), SCENES, 2),
    "Intel scenes, wrapped": split(("seg_train/seg_train", "seg_test/seg_test"), SCENES, 2, "archive/"),
    "Intel scenes with seg_pred": Layout(
        "classes",
        splits(("seg_train/seg_train", "seg_test/seg_test"), SCENES, 2)
        | {f"seg_pred/seg_pred/{k}.jpg": Pic(3000 + k) for k in range(8)},
        "folder/refused", says="seg_pred", unused="seg_pred", note="seg_pred",
    ),
    "Fruits-360": folder(
        splits(("Training", "Test"), ("Apple Braeburn", "Banana", "Cherry 1"), 3, "fruits-360/")
        | {"fruits-360/readme.md": "# Fruits\n", "fruits-360/LICENSE": "MIT"}
    ),
    "Fruits-360 with several fruits": Layout(
        "classes",
        splits(("Training", "Test"), ("Apple Braeburn", "Banana", "Cherry 1"), 3, "fruits-360/")
        | {f"fruits-360/test-multiple_fruits/apple_{k}.jpg": Pic(3000 + k) for k in range(4)},
        "folder/refused", says="test-multiple_fruits", unused="test-multiple", note="test-multiple",
    ),
    "LFW (Kaggle)": folder(
        own("Aaron_Eckhart", "Abba_Eban", "Zico", n=2, root="lfw-deepfunneled/lfw-deepfunneled/")
    ),
    "Caltech 101 from its folder": folder(own("ant", "bass", "beaver", root="101_ObjectCategories/")),
    "Caltech 101 in caltech-101": folder(
        own("BACKGROUND_Google", "Faces_easy", "ant", root="caltech-101/101_ObjectCategories/")
    ),
    "Caltech 256": folder(own("001.ak47", "002.american-flag", root="256_ObjectCategories/")),
    "Chest X-Ray": split(("train", "val", "test"), ("NORMAL", "PNEUMONIA"), 3, "chest_xray/"),
    "Chest X-Ray (Kaggle, with __MACOSX)": folder(
        splits(("train", "val", "test"), ("NORMAL", "PNEUMONIA"), 3, "chest_xray/chest_xray/")
        | {"chest_xray/__MACOSX/chest_xray/train/NORMAL/._000.jpg": b"\0\5\x16\7" + bytes(60)}
    ),
    "train, valid, test": split(("train", "valid", "test"), ("cat", "dog")),
    "train, test only": split(("train", "test"), ("cat", "dog")),
    "Training, Testing: brain tumours": split(("Training", "Testing"), ("glioma", "meningioma", "notumor", "pituitary")),
    "training_set, test_set: cats and dogs": split(("training_set", "test_set"), ("cats", "dogs")),
    "training_set/training_set (Kaggle)": split(("training_set/training_set", "test_set/test_set"), ("cats", "dogs")),
    "train, validation (cats_and_dogs_filtered)": split(("train", "validation"), ("cats", "dogs"), 4, "cats_and_dogs_filtered/"),
    "a class that is missing in valid": folder(
        splits(("train",), ("cat", "dog", "emu")) | {f"valid/{c}/{k}.jpg": Pic(700 + 9 * i + k) for i, c in enumerate(("cat", "dog")) for k in range(2)}
    ),
    "data/train, data/test": split(("train", "test"), ("cat", "dog"), 3, "data/"),
    "data/{cat,dog} and a README": folder(classes("cat", "dog", pattern="data/{c}/{k}.jpg") | {"README.txt": "pets"}),
    "AFHQ": split(("train", "val"), ("cat", "dog", "wild"), 3, "afhq/"),
    "CelebA-HQ of StarGAN": split(("train", "val"), ("female", "male"), 3, "celeba_hq/"),
    "imagewoof2-160": split(("train", "val"), ("n02086240", "n02087394"), 3, "imagewoof2-160/"),
    "rock, paper, scissors": folder(classes("rock", "paper", "scissors", pattern="rps/rps/{c}/{c}-{k}.png")),
    # -- nested
    "an inner folder of one name": folder(classes("cat", "dog", pattern="{c}/images/{k}.jpg"), level=0),
    "an inner folder of one name in splits": folder(
        {f"{s}/{c}/images/{k}.jpg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "val")) for i, c in enumerate(("cat", "dog")) for k in range(3)},
        level=1,
    ),
    # -- similar pictures that are classes
    "COIL: objects on a turntable": folder(views("obj1", "obj2", "obj3", "obj4", "obj5", n=12)),
    "a door before a fixed camera: open, closed": folder(
        {f"{c}/{k:04}.jpg": Pic(300 + 40 * i + k, background=3) for i, c in enumerate(("open", "closed")) for k in range(10)}
    ),
    "a road before a fixed camera: high, low": folder(
        {f"{c}/{k:04}.jpg": Pic(300 + 40 * i + k, background=3) for i, c in enumerate(("high", "low")) for k in range(10)}
    ),
    "hands before one wall: left, right": folder(
        {f"{c}/{k:04}.jpg": Pic(300 + 40 * i + k, background=5) for i, c in enumerate(("left", "right")) for k in range(10)}
    ),
    "frames of one object: clean, dirty": folder(
        {f"{c}/frame_{k:04}.jpg": Pic(40 * i, frame=k, background=6) for i, c in enumerate(("clean", "dirty")) for k in range(10)}
    ),
    "flat drawings: circle, square": folder(
        {f"{c}/{k}.png": Pic(40 * i + k, "binary") for i, c in enumerate(("circle", "square")) for k in range(8)}
    ),
    "drawings and photos in one tree: QuickDraw": folder(
        {f"{c}/{k}.png": Pic(40 * i + k, "edges") for i, c in enumerate(("cat", "dog", "emu")) for k in range(8)}
    ),
    # -- names of splits
    "splits: TRAIN, TEST": split(("TRAIN", "TEST"), ("O", "R")),
    "splits: Train, Valid, Test": split(("Train", "Valid", "Test"), ("cat", "dog")),
    "splits: train_images, test_images": split(("train_images", "test_images"), ("cat", "dog")),
    "splits: train_data, test_data": split(("train_data", "test_data"), ("cat", "dog")),
    "splits: train_set, val_set": split(("train_set", "val_set"), ("cat", "dog")),
    "splits: dataset_train, dataset_test": split(("dataset_train", "dataset_test"), ("cat", "dog")),
    "splits: Training_Data, Testing_Data": split(("Training_Data", "Testing_Data"), ("cat", "dog")),
    "splits: train-224, test-224": split(("train-224", "test-224"), ("cat", "dog")),
    "splits: train_another, validation_another, test, test_another (hurricanes)": split(
        ("train_another", "validation_another", "test", "test_another"), ("damage", "no_damage"), 2
    ),
    "splits: train, dev": split(("train", "dev"), ("cat", "dog")),
    "splits: validation and training (10 monkeys)": split(
        ("training/training", "validation/validation"), ("n0", "n1", "n2"), 3
    ),
    "splits of one class each": split(("train", "val"), ("cat",)),
    "splits: left, right in each": split(("train", "val"), ("left", "right"), 8),
    "splits: A to C in each": split(("train", "test"), ("A", "B", "C"), 8),
    "splits: train, test with a README in each": folder(
        splits(("train", "test"), ("cat", "dog")) | {"train/README.txt": "Pictures.\n", "test/README.txt": "Pictures.\n"},
        split=0,
    ),
    # -- Kaggle and others, as they are unpacked
    "Microsoft's PetImages": folder(
        classes("Cat", "Dog", pattern="PetImages/{c}/{k}.jpg")
        | {"readme[1].txt": "Thank you.\n", "MSR-LA - 3467.docx": b"PK\3\4" + bytes(40), "PetImages/Cat/Thumbs.db": b"\xd0\xcf\x11\xe0"}
    ),
    "rice, with a request for citation": folder(
        classes("Arborio", "Basmati", "Ipsala", pattern="Rice_Image_Dataset/{c}/{c} ({k}).jpg")
        | {"Rice_Image_Dataset/Rice_Citation_Request.txt": "1: Koklu, M., Cinar, I. (2021). Classification of rice varieties.\n"}
    ),
    "flowers-recognition": folder(classes("daisy", "dandelion", "rose", pattern="flowers/{c}/{k}_a.jpg")),
    "animals-10 and translate.py": folder(classes("cane", "cavallo", "gatto", pattern="raw-img/{c}/{k}.jpeg") | {"translate.py": "translate = {'cane': 'dog'}\n"}),
    "OCT2017, a blank at the end": split(("train", "val", "test"), ("CNV", "DME", "DRUSEN", "NORMAL"), 2, "OCT2017 /"),
    "Alzheimer, an apostrophe": split(("train", "test"), ("MildDemented", "NonDemented"), 3, "Alzheimer's Dataset/"),
    "sign language: A/A1.jpg": folder(classes(*LETTERS[:6], n=8, pattern="asl_alphabet_train/asl_alphabet_train/{c}/{c}{k}.jpg")),
    "sign language (Kaggle) with its flat test": Layout(
        "classes",
        classes(*LETTERS[:6], n=8, pattern="asl_alphabet_train/asl_alphabet_train/{c}/{c}{k}.jpg")
        | {f"asl_alphabet_test/asl_alphabet_test/{c}_test.jpg": Pic(3000 + i) for i, c in enumerate(LETTERS[:6])},
        "folder/refused", says="asl_alphabet_test", unused="_test/", note="asl_alphabet_test",
    ),
    "vegetables": split(("test", "train", "validation"), ("Bean", "Bitter_Gourd"), 3, "Vegetable Images/"),
    "chess": folder(classes("Bishop", "King", "Pawn", pattern="Chessman-image-dataset/Chess/{c}/{k:08}.jpg")),
    "FER-2013": split(("train", "test"), ("angry", "happy", "sad"), 3),
    "FER-2013, images/images": split(("train", "validation"), ("angry", "happy"), 3, "images/images/"),
    "waste: DATASET/DATASET": split(("TRAIN", "TEST"), ("O", "R"), 3, "DATASET/DATASET/"),
    "CIFAKE": split(("train", "test"), ("FAKE", "REAL"), 8),
    "tomato leaves and a script": folder(splits(("train", "val"), ("Leaf_Mold", "healthy"), 3, "tomato/") | {"tomato/cnn_train.py": "x = 1\n"}, split=1),
    "concrete: archive/Positive, archive/Negative": folder(classes("Positive", "Negative", n=8, pattern="archive/{c}/{k:05}.jpg")),
    "a repository of Hugging Face": folder(
        splits(("train", "test"), ("cat", "dog"), 3, "data/") | {"README.md": "---\nlicense: mit\n---\n", ".gitattributes": "*.jpg lfs\n"}, split=1
    ),
    "a repository of GitHub: master": folder(
        classes("cat", "dog", pattern="pets-master/images/{c}/{k}.jpg")
        | {"pets-master/README.md": "# Pets\n", "pets-master/LICENSE": "MIT", "pets-master/.gitignore": "x"}
    ),
    "a wrapper next to a PDF": folder(classes("cat", "dog", pattern="pets/{c}/{k}.jpg") | {"paper.pdf": b"%PDF-1.4\n"}),
    "classes.txt in another order": Layout("classes", CAT_DOG | {"classes.txt": "dog\ncat\n"}, "folder/refused", says="classes.txt"),
    "classes.txt above a wrapper": folder(classes("cat", "dog", pattern="pets/{c}/{k}.jpg") | {"classes.txt": "cat\ndog\n"}),
    "classes.txt in splits": folder(splits(("train", "val"), ("cat", "dog")) | {"classes.txt": "cat\ndog\n"}, split=0),
    # -- words that mean something else in other trees; files of the same names, 8 in a class
    **{
        f"words: {', '.join(names)}": folder(classes(*names, n=8))
        for names in (
            ("bullet_train", "gasmask", "ski_mask", "screen"),
            ("train_interior", "train_station", "clean_room", "control_room"),
            ("left_shoe", "right_shoe"), ("left_eye", "right_eye", "nose"), ("open", "closed"),
            ("left_hemisphere", "right_hemisphere"), ("A", "B", "AB", "O"), ("A", "B", "C", "D", "E"),
            ("original", "fake", "copy"), ("raw", "cooked"), ("reference", "sample"),
            ("hazy", "clear", "rainy", "snowy"), ("foggy", "clear"), ("shallow", "deep"), ("GT", "sedan", "SUV"),
            ("HR", "IT", "Sales"), ("annotation", "drawing", "text"), ("test_tube", "flask", "beaker"),
            ("indoor", "outdoor"), ("clip", "pin", "screw"), ("fold", "crease", "tear"), ("trainer", "boot", "sandal"),
            ("0-10", "11-20", "21-30"), ("no_damage", "minor", "major"), ("normal", "abnormal"), ("good", "bad"),
            ("defect", "ok"), ("male", "female"), ("benign", "malignant"), ("pass", "fail"), ("on", "off"),
            ("front", "back"), ("front", "back", "left", "right", "top"), ("inside", "outside"), ("dry", "wet"),
            ("high_quality", "low_quality"), ("high_risk", "low_risk"), ("label_ok", "label_missing"),
            ("with_label", "without_label"), ("mask_on", "mask_off"), ("depth_1", "depth_2", "depth_3"),
            ("class_0", "class_1"), ("class0", "class1", "class10"), ("c0", "c1", "c2"), ("level1", "level2"),
            ("grade_A", "grade_B"), ("type_A", "type_B"), ("model_a", "model_b"), ("visible", "hidden"),
            ("short", "long"), ("light", "dark"), ("source", "sink"), ("target", "decoy"), ("input_jack", "output_jack"),
            ("photo", "painting", "sketch"), ("real", "synthetic"), ("color", "gray"), ("day", "dusk", "night"),
            ("healthy", "unhealthy"), ("early", "late"), ("start", "end"), ("x", "o"), ("T1", "T2", "FLAIR"),
            ("rain", "snow", "sun"), ("rgb", "cmyk"), ("mat", "rug"), ("data", "voice"), ("image", "no_image"),
        )
    },
    "words in splits: left, right, straight": split(("train", "val"), ("left", "right", "straight"), 8),
    "words in splits: mask, no_mask": split(("train", "test"), ("mask", "no_mask"), 8),
    "words in splits: high, low": split(("train", "test"), ("high", "low"), 8),
    "words in splits: input, output": split(("train", "test"), ("input", "output"), 8),
    "ORL faces: s1 to s6": folder(views("s1", "s2", "s3", "s4", "s5", "s6", n=10)),
    "persons: id_00000002": folder(classes("id_00000002", "id_00000003", "id_00000010", n=5)),
    "chess squares: a1/a1_1.jpg": folder(own("a1", "a2", "b1", "b2")),
    "driver states: c0/img_7.jpg": folder(
        {f"c{k % 3}/img_{k}.jpg": Pic(k) for k in range(24)}
    ),
    "frames of one video, cut by class": folder(
        {f"{c}/frame_{k:04}.jpg": Pic(8, "photo", (48, 36), k) for c, (a, b) in {"run": (0, 9), "walk": (9, 20)}.items() for k in range(a, b)}
    ),
    "frames of one video, two classes in turns": folder(
        {f"{('run', 'walk')[k % 2]}/frame_{k:04}.jpg": Pic(8, "photo", (48, 36), k) for k in range(24)}
    ),
    **{
        f"unlike pictures of one name: {', '.join(names)}": folder(
            {f"{c}/{k:04}.jpg": Pic(40 * i + k, kind) for i, (c, kind) in enumerate(zip(names, kinds, strict=True)) for k in range(8)}
        )
        for names, kinds in (
            (("color", "gray"), ("photo", "gray")), (("painting", "sketch"), ("photo", "edges")),
            (("light", "dark"), ("photo", "dark")), (("photo", "negative"), ("photo", "gray")),
            (("fresh", "stale"), ("photo", "warm")), (("rain", "dry"), ("rain", "photo")),
        )
    },
    # -- numbers of files
    "MNIST as files: numbers through all classes": folder(
        {f"{k % 3}/{k}.png": Pic(k, "gray", (28, 28)) for k in range(24)}
    ),
    "sorted by class: numbers go on, sizes differ": folder(
        {f"{c}/{k:05}.png": Pic(k) for c, (a, b) in enumerate(((0, 5), (5, 12), (12, 15))) for k in range(a, b)}
    ),
    "coins: years": folder(classes("1999", "2004", "2011", n=5)),
    # -- flat pictures in every folder
    "handwriting: A to F, black and white": folder(
        {f"{c}/{k}.png": Pic(40 * i + k, "binary", (28, 28)) for i, c in enumerate("ABCDEF") for k in range(8)}
    ),
    "digits: black and white": folder(
        {f"{c}/{k}.png": Pic(40 * i + k, "binary", (28, 28)) for i, c in enumerate("0123456789") for k in range(8)}
    ),
    "icons: left, right, up": folder(
        {f"{c}/icon_{k}.png": Pic(40 * i + k, "colours", (32, 32)) for i, c in enumerate(("left", "right", "up")) for k in range(8)}
    ),
    "icons and photos": Layout(
        "classes",
        {f"{c}/{c}_{k}.png": Pic(40 * i + k, kind) for i, (c, kind) in enumerate((("icon", "colours"), ("photo", "photo"))) for k in range(8)},
        "folder/refused", says="icon",
    ),
    "smooth and grey in one class: clear, fog": Layout(
        "classes",
        {f"{c}/{k:04}.jpg": Pic(40 * i + k, kind) for i, (c, kind) in enumerate((("clear", "photo"), ("fog", "depth"))) for k in range(8)},
        "folder/refused", says="fog",
    ),
    "maps, charts, photographs": folder(
        {f"{c}/{c}_{k}.png": Pic(40 * i + k, kind) for i, (c, kind) in enumerate((("map", "colours"), ("chart", "binary"), ("photograph", "photo"))) for k in range(8)}
    ),
    "gray scans: clean, stained": folder(
        {f"{c}/{k:03}.png": Pic(40 * i + k, "gray") for i, c in enumerate(("clean", "stained")) for k in range(8)}
    ),
    "dark pictures: day, night of other places": folder(
        {f"{c}/{k:03}.jpg": Pic(40 * i + k, kind) for i, (c, kind) in enumerate((("day", "photo"), ("night", "night"))) for k in range(8)}
    ),
    "blurred pictures of other scenes: blur, sharp": folder(
        {f"{c}/{k:03}.jpg": Pic(40 * i + k, kind) for i, (c, kind) in enumerate((("sharp", "photo"), ("blur", "blur"))) for k in range(8)}
    ),
    "noisy pictures of other scenes: clean, noisy": folder(
        {f"{c}/{k:03}.png": Pic(40 * i + k, kind) for i, (c, kind) in enumerate((("clean", "photo"), ("noisy", "noise"))) for k in range(8)}
    ),
    "one picture in two classes": folder(
        classes("beach", "sunset", n=10) | {"beach/twice.jpg": Pic(950), "sunset/twice.jpg": Pic(950)}
    ),
    "portraits before one wall: happy, sad": folder(
        {f"{c}/p{k:02}.jpg": Pic(300 + 40 * i + k, background=5) for i, c in enumerate(("happy", "sad")) for k in range(10)}
    ),
}  # fmt: skip

FORK = b"\0\5\x16\7\0\2\0\0Mac OS X" + bytes(48)
"""The start of a resource fork, as in ``._a.jpg``."""

_JUNK_FILES: dict[str, Tree] = {
    ".ipynb_checkpoints": {
        f".ipynb_checkpoints/{k:03}-checkpoint.jpg": Pic(2000 + k) for k in range(2)
    },
    ".ipynb_checkpoints in a class": {"cat/.ipynb_checkpoints/000-checkpoint.jpg": Pic(2000)},
    ".ipynb_checkpoints, empty": {".ipynb_checkpoints/": ""},
    ".git": {".git/HEAD": "ref: refs/heads/main\n", ".git/objects/ab/cd.jpg": Pic(2000)},
    "@eaDir": {
        "@eaDir/cat@SynoResource": "x",
        "cat/@eaDir/000.jpg/SYNOPHOTO_THUMB_M.jpg": Pic(2000),
    },
    "__MACOSX": {"__MACOSX/cat/._000.jpg": FORK, "__MACOSX/._cat": FORK},
    "lost+found": {"lost+found/": ""},
    "lost+found with an image": {"lost+found/12.jpg": Pic(2000)},
    "Thumbs.db": {
        "Thumbs.db": b"\xd0\xcf\x11\xe0" + bytes(60),
        "cat/Thumbs.db": b"\xd0\xcf\x11\xe0",
    },
    "desktop.ini": {"desktop.ini": "[.ShellClassInfo]\n", "dog/desktop.ini": "[ViewState]\n"},
    ".DS_Store": {".DS_Store": b"\0\0\0\1Bud1", "cat/.DS_Store": b"\0\0\0\1Bud1"},
    "._a.jpg": {"cat/._000.jpg": FORK, "dog/._000.jpg": FORK},
    ".thumbnails": {".thumbnails/000.jpg": Pic(2000), "cat/.thumbnails/000.jpg": Pic(2001)},
    ".Trash-1000": {".Trash-1000/files/old.jpg": Pic(2000)},
    "editor files": {".labels.csv.swp": "x", ".cache.json": "{}"},
}

HIDDEN: dict[str, Layout] = {
    **{
        f"hidden: {name}": Layout("hidden", CAT_DOG | dict(tree), "folder")
        for name, tree in _JUNK_FILES.items()
    },
    **{
        f"hidden in a split: {name}": Layout(
            "hidden",
            splits(("train", "val"), ("cat", "dog"))
            | {f"train/{file}": content for file, content in _JUNK_FILES[name].items()},
            "folder",
        )
        for name in (".ipynb_checkpoints", "@eaDir", "__MACOSX", ".DS_Store")
    },
    **{
        f"hidden, {archive}: {name}": Layout(
            "hidden",
            {k: v for k, v in (CAT_DOG | dict(_JUNK_FILES[name])).items() if not k.endswith("/")},
            "folder",
            archive=archive,
        )
        for archive in ("zip", "tar", "tar.gz")
        for name in (".ipynb_checkpoints", "__MACOSX", ".DS_Store", "._a.jpg", "Thumbs.db")
    },
    "hidden and flat: .ipynb_checkpoints": Layout(
        "hidden",
        {f"{k}.jpg": Pic(k) for k in range(6)} | {".ipynb_checkpoints/0-checkpoint.jpg": Pic(90)},
        "flat", count=6,
    ),
    "hidden and flat: __MACOSX": Layout(
        "hidden",
        {f"photos/{k}.jpg": Pic(k) for k in range(6)} | {"__MACOSX/photos/._0.jpg": FORK},
        "flat", count=6,
    ),
    "hidden and flat: ._a.jpg": Layout(
        "hidden", {f"{k}.jpg": Pic(k) for k in range(6)} | {"._0.jpg": FORK}, "flat", count=6
    ),
    "hidden only": Layout(
        "hidden", {".cache/cat/0.jpg": Pic(0), ".cache/dog/0.jpg": Pic(1)}, "refused"
    ),
}  # fmt: skip
